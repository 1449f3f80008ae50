"""Query the sensor and all servers in parallel for a scrape; merge the results into one value per series."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from innoscope.common import slowness
from innoscope.common.samples import Outcome, Sample
from innoscope.common.supervision import Trouble
from innoscope.daemon.protocol.client import SensorDown
from innoscope.metrics.collectors import sql_catalog
from innoscope.metrics.collectors.crosscheck import differences
from innoscope.metrics.collectors.errors import CollectorFailed
from innoscope.metrics.collectors.own import Pushes, SensorState, own
from innoscope.metrics.collectors.runner import Runner
from innoscope.metrics.collectors.toggles import TogglesFile
from innoscope.metrics.counters import Life
from innoscope.metrics.merge import Merger, ServerOutcomes, about, failure
from innoscope.target.discover import find_all
from innoscope.target.proc import ProcFs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from innoscope.daemon.agent.servers import ObservedServer, Servers, SqlChannel
    from innoscope.daemon.protocol.messages import Reply
    from innoscope.metrics.merge import ExportedSeries
    from innoscope.metrics.registry import Registry

#: A scrape that is requested within this many seconds after the latest one shares its result.
_SHARED_S: Final = 0.25
#: Time limit of a scrape in seconds, with few servers on an ordinary host.
_SCRAPE_S: Final = 0.8
#: Minimum timeout of SQL queries in seconds, even if less time remains for the scrape.
_MIN_TIMEOUT_S: Final = 0.05
#: Collectors to report as failed if the sensor has not yet listed the collectors of a server.
_DEFAULT_COLLECTORS: Final = ("process", "memory", "probes", "waits")
_NOT_SEEN: Final = "has not run since the agent started"
_NO_REPLY: Final = "gone: the sensor does not answer"
#: For example, the sensor is still identifying the server, or already watches max_servers servers.
_NOT_WATCHED: Final = "gone: the sensor does not watch this server; see its log"


class CollectApi(Protocol):
    """The part of ``SensorClient`` that a scrape uses."""

    def collect(self, timeout: float) -> Reply:
        """Run all collectors of the sensor once, and return their results within ``timeout`` seconds."""


@dataclass(frozen=True, slots=True)
class ServerState:
    """State of one server for the live page: its identity, and the result of each collector."""

    name: str
    what: str  # flavour, version and pid, or the reason why they are unknown
    up: bool | None
    collectors: tuple[tuple[str, str | None], ...]  # (collector, None or the reason for its failure)


@dataclass(frozen=True, slots=True)
class Scrape:
    """Result of one scrape. ``at`` is the monotonic time at which it was made, in seconds."""

    at: float
    series: tuple[ExportedSeries, ...]
    servers: tuple[ServerState, ...]


class _SensorCollector:
    """Presents the sensor as a collector, so that a Runner can apply a timeout."""

    name = "sensor"

    def __init__(self, sensor: CollectApi, timeout: float) -> None:
        self._sensor = sensor
        self.timeout = timeout
        self.reply: Reply | None = None

    def collect(self) -> Iterable[Sample]:
        self.reply = None
        try:
            self.reply = self._sensor.collect(self.timeout)
        except SensorDown as error:
            raise CollectorFailed("gone", error.in_one_line) from error
        return ()


class Gatherer:
    """Runs scrapes, at most one at a time."""

    def __init__(
        self,
        sensor: CollectApi,
        servers: Servers,
        registry: Registry,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._servers = servers
        self._clock = clock
        self._merger = Merger(registry)
        self._timeout = slowness.scaled(servers.config.sensor.timeout_seconds)
        self._sensor = _SensorCollector(sensor, self._timeout)
        self._runner = Runner([self._sensor], servers.workers, "sensor")
        self._toggles = TogglesFile()
        self._lock = threading.Lock()
        self._checked = frozenset(entry.metric for entry in sql_catalog.default().entries)
        self.state = SensorState()
        self.pushes: Pushes | None = None
        self.history: Callable[[], list[Sample]] = list
        self.notifications: Callable[[], list[Sample]] = list
        self.uploads: Callable[[], list[Sample]] = list
        self.otlp: Callable[[], list[Sample]] = list
        self.watch: Callable[[], list[Sample]] = list
        self.incidents: Callable[[str], list[Sample]] = lambda _server: []
        self.findings: Callable[[str], list[Sample]] = lambda _server: []
        self.trouble: Callable[[], Trouble] = Trouble
        self.latest: Scrape | None = None

    @property
    def budget(self) -> float:
        """Return the time limit of a scrape in seconds. It grows on slow hosts and with many servers."""
        return slowness.scaled(_SCRAPE_S) * self._crowding

    @property
    def _crowding(self) -> float:
        return slowness.crowding(len(list(self._servers)))

    def gather(self, budget: float | None = None) -> Scrape | None:
        """Run a scrape, unless the latest one is recent enough to share.

        The time limit is ``budget`` seconds, by default ``self.budget``.
        If waiting for another thread's scrape takes more than half of the budget, return the latest complete
        scrape, if any. A scrape in the remaining time might report the sensor and the servers as failed only
        because they timed out.
        """
        budget = self.budget if budget is None else budget
        deadline = self._clock() + budget
        if not self._lock.acquire(timeout=budget):
            return self.latest
        try:
            is_recent = self.latest is not None and self._clock() - self.latest.at <= _SHARED_S
            if not is_recent and deadline - self._clock() >= budget / 2:
                self.latest = self._gather(deadline)
            return self.latest
        finally:
            self._lock.release()

    def recent(self, max_age_s: float) -> Scrape | None:
        """Return the latest scrape if it is at most ``max_age_s`` seconds old, otherwise a new one."""
        if self.latest is not None and self.age() <= max_age_s:
            return self.latest
        return self.gather()

    def age(self) -> float:
        """Return the age of the latest scrape in seconds; 0 before the first scrape."""
        return self._clock() - self.latest.at if self.latest else 0.0

    def maintain(self) -> None:
        """Search for servers if the sensor is unavailable, and forget servers that exited long ago.

        If the sensor answers, it alone decides which processes are servers.
        """
        if self.latest is None:
            with self._lock:
                self._ask_sensor(self._timeout * self._crowding)
                self._store_sensor_outcomes(list(self._servers))
        targets = () if self.state.up else find_all(ProcFs())
        with self._lock:
            self._servers.register(targets)
            if self.state.up:
                self._servers.forget_unreported()
            self._servers.forget_ended()
            self._merger.keep_only(server.name for server in self._servers)

    def _gather(self, deadline: float) -> Scrape:
        self._ask_sensor(min(self._timeout * self._crowding, deadline - self._clock()))
        known = list(self._servers)
        asked = self._start_sql(known, deadline)
        self._store_sensor_outcomes(known)
        self._start_sql([server for server in self._servers if server.channel not in asked], deadline)
        self._toggles.read()
        series: list[ExportedSeries] = []
        states = []
        for server in self._servers:
            outcomes = self._outcomes(server)
            series += self._merger.merge(ServerOutcomes(server.name, self._life(server), outcomes))
            states.append(_state_of(server, outcomes))
        own_outcome = own(
            self.state,
            self._merger.dropped,
            self.pushes,
            self.trouble(),
            [*self.history(), *self.watch(), *self.notifications(), *self.uploads(), *self.otlp()],
        )
        series += self._merger.merge(ServerOutcomes("", Life(None, self.state.life), (own_outcome,)))
        return Scrape(self._clock(), tuple(series), tuple(states))

    def _ask_sensor(self, timeout: float) -> None:
        self._sensor.timeout = timeout
        self._runner.start()

    def _start_sql(self, servers: Iterable[ObservedServer], deadline: float) -> list[SqlChannel]:
        """Start the SQL queries on all servers that have a channel, and return the channels."""
        timeout = slowness.scaled(self._servers.config.sql.timeout_seconds)
        channels = [server.channel for server in servers if server.channel is not None]
        for channel in channels:
            channel.start(max(_MIN_TIMEOUT_S, min(timeout, deadline - self._clock())))
        return channels

    def _store_sensor_outcomes(self, servers: Iterable[ObservedServer]) -> None:
        """Store each server's outcomes from the sensor's reply, or failures if there is no reply."""
        (outcome,) = self._runner.outcomes()
        reply = self._sensor.reply if outcome.success else None
        if reply is None:
            self.state.failed(failure(outcome)[1])
            for server in servers:
                server.outcomes = _failed_outcomes(server, outcome.seconds, _NO_REPLY)
            return
        life = (reply.boot_id, reply.pid)
        self.state.answered(life, reply.version, reply.cpu_seconds, reply.rss_bytes, reply.trouble)
        for server in servers:
            server.outcomes = ()
        for entry in reply.servers:
            known = self._servers.register_from_sensor(entry.name, entry.target)
            if known is not None:
                known.outcomes = entry.outcomes
                known.collectors = tuple(one.collector for one in entry.outcomes)
        for server in self._servers:
            if server.up and not server.outcomes:
                server.outcomes = _failed_outcomes(server, 0.0, _NOT_WATCHED)

    def _outcomes(self, server: ObservedServer) -> tuple[Outcome, ...]:
        """Return the outcomes of a server's collectors, and an outcome with metrics derived from them."""
        outcomes = [*server.outcomes]
        if server.channel is not None:
            metrics, state = server.channel.outcomes()
            outcomes += [self._sql(server, metrics), state]
        if server.target is not None:
            outcomes.append(self._toggles.outcome(server.target))
        elif server.expected and self.state.up:
            outcomes.append(Outcome("process", False, 0.0, (), f"gone: {_NOT_SEEN}"))
        # Without the sensor, the agent may fail to recognize a server whose port it has no permission to
        # read.
        is_known = server.target is not None or self.state.up
        samples = [Sample("mysqld_up", int(server.up))] if is_known and server.up is not None else []
        if server.target is not None:
            samples += [*self.incidents(server.name), *self.findings(server.name)]
        return (*outcomes, Outcome("agent", True, 0.0, (*about(outcomes), *samples)))

    def _sql(self, server: ObservedServer, outcome: Outcome) -> Outcome:
        sql_up = Sample("sql_up", int(bool(outcome.samples)))
        memory = [one for one in server.outcomes if one.collector == "memory"]
        checks = [sample for one in memory for sample in differences(one, outcome.samples, self._checked)]
        return Outcome(
            outcome.collector,
            outcome.success,
            outcome.seconds,
            (*outcome.samples, sql_up, *checks),
            outcome.reason,
        )

    def _life(self, server: ObservedServer) -> Life:
        return Life(server.life, self.state.life)


def _failed_outcomes(server: ObservedServer, seconds: float, reason: str) -> tuple[Outcome, ...]:
    """Return a failed outcome for each of the sensor's collectors, so that each failure is exported."""
    if server.target is None:
        return ()
    names = server.collectors or _DEFAULT_COLLECTORS
    return tuple(Outcome(name, False, seconds, (), reason) for name in names)


def _state_of(server: ObservedServer, outcomes: Iterable[Outcome]) -> ServerState:
    target = server.target
    absent = _NOT_SEEN if server.expected else "on another host"
    what = f"{target.flavour} {target.version_text}, pid {target.pid}" if target else absent
    collectors = tuple(
        (one.collector, None if one.success else ": ".join(failure(one)))
        for one in outcomes
        if one.collector != "agent"
    )
    return ServerState(server.name, what, server.up, collectors)
