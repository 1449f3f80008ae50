"""One gathering: the sensor and all servers asked side by side, and one value for each series made of it."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

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

    from innoscope.daemon.agent.servers import Lane, Server, Servers
    from innoscope.daemon.protocol.messages import Reply
    from innoscope.metrics.merge import Series
    from innoscope.metrics.registry import Registry

#: Scrapes that come within so many seconds after another share its result.
_FRESH: Final = 0.25
#: The least that a server is given to answer, however little time is left, in seconds.
_LEAST: Final = 0.05
#: What a sensor is expected to tell of a server before it has told anything.
_SENSOR_COLLECTORS: Final = ("process", "memory", "probes", "waits")


class Sensor(Protocol):
    """What asks the sensor: ``innoscope.daemon.protocol.client.SensorClient``."""

    def collect(self) -> Reply:
        """One run of all its collectors."""


@dataclass(frozen=True, slots=True)
class ServerView:
    """One server for the landing page: what works, and why the rest does not."""

    name: str
    what: str
    up: bool | None
    collectors: tuple[tuple[str, str | None], ...]  # (collector, None or why it failed)


@dataclass(frozen=True, slots=True)
class Picture:
    """What one gathering gave. ``at`` is monotonic."""

    at: float
    series: tuple[Series, ...]
    servers: tuple[ServerView, ...]


class _Asking:
    """The sensor as a collector, so that a runner gives it a thread and a time limit."""

    name = "sensor"

    def __init__(self, sensor: Sensor, timeout: float) -> None:
        self._sensor = sensor
        self.timeout = timeout
        self.reply: Reply | None = None

    def collect(self) -> Iterable[Sample]:
        self.reply = None
        try:
            self.reply = self._sensor.collect()
        except SensorDown as error:
            raise CollectorFailed("gone", f"{error.what} ({error.remedy})") from error
        return ()


class Gatherer:
    """Gathers when it is asked to, never twice at the same time."""

    def __init__(
        self,
        sensor: Sensor,
        servers: Servers,
        registry: Registry,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._servers = servers
        self._clock = clock
        self._merger = Merger(registry)
        self._timeout = servers.config.sensor.timeout_seconds
        self._asking = _Asking(sensor, self._timeout)
        self._runner = Runner([self._asking], servers.workers, "sensor")
        self._toggles = TogglesFile()
        self._lock = threading.Lock()
        self._checked = frozenset(entry.metric for entry in sql_catalog.default().entries)
        self.state = SensorState()
        self.pushes: Pushes | None = None
        self.incidents: Callable[[str], list[Sample]] = lambda _server: []
        self.trouble: Callable[[], Trouble] = Trouble
        self.picture: Picture | None = None

    def gather(self, budget: float) -> Picture | None:
        """A fresh picture within ``budget`` seconds; the last one, perhaps None, if that is not to be had."""
        if not self._lock.acquire(timeout=budget):
            return self.picture
        try:
            if self.picture is None or self._clock() - self.picture.at > _FRESH:
                self.picture = self._gather(budget)
            return self.picture
        finally:
            self._lock.release()

    def recent(self, budget: float, most_s: float) -> Picture | None:
        """The last picture if it is no older than that, else a fresh one."""
        if self.picture is not None and self.age() <= most_s:
            return self.picture
        return self.gather(budget)

    def age(self) -> float:
        """Seconds since the last gathering; 0 before the first."""
        return self._clock() - self.picture.at if self.picture else 0.0

    def maintain(self) -> None:
        """Look for servers while the sensor does not tell of them, and forget those that ended long ago."""
        targets = () if self.state.up else find_all(ProcFs())
        with self._lock:
            self._servers.found(targets)
            self._servers.forget_the_gone()
            self._merger.keep_only(server.name for server in self._servers)

    def _gather(self, budget: float) -> Picture:
        deadline = self._clock() + budget
        self._asking.timeout = min(self._timeout, budget)
        self._runner.start()
        known = list(self._servers)
        asked = self._ask(known, deadline)
        self._take_sensor(known)
        self._ask([server for server in self._servers if server.lane not in asked], deadline)
        self._toggles.read()
        series: list[Series] = []
        views = []
        for server in self._servers:
            outcomes = self._outcomes(server)
            series += self._merger.merge(ServerOutcomes(server.name, self._life(server), outcomes))
            views.append(_view(server, outcomes))
        ours = own(self.state, self._merger.dropped, self.pushes, self.trouble())
        series += self._merger.merge(ServerOutcomes("", Life(None, self.state.life), (ours,)))
        return Picture(self._clock(), tuple(series), tuple(views))

    def _ask(self, servers: Iterable[Server], deadline: float) -> list[Lane]:
        """Begin to ask them over SQL; the lanes that were started."""
        most = self._servers.config.sql.timeout_seconds
        lanes = [server.lane for server in servers if server.lane is not None]
        for lane in lanes:
            lane.start(max(_LEAST, min(most, deadline - self._clock())))
        return lanes

    def _take_sensor(self, servers: Iterable[Server]) -> None:
        """What the sensor said, or that it said nothing."""
        (outcome,) = self._runner.outcomes()
        reply = self._asking.reply if outcome.success else None
        if reply is None:
            self.state.failed(failure(outcome)[1])
            for server in servers:
                server.outcomes = _silent(server, outcome.seconds)
            return
        life = (reply.boot_id, reply.pid)
        self.state.answered(life, reply.version, reply.cpu_seconds, reply.rss_bytes, reply.trouble)
        for server in servers:
            server.outcomes = ()
        for told in reply.servers:
            met = self._servers.met(told.name, told.target)
            if met is not None:
                met.outcomes = told.outcomes
                met.collectors = tuple(one.collector for one in told.outcomes)

    def _outcomes(self, server: Server) -> tuple[Outcome, ...]:
        """All outcomes of a server, and what follows from them together."""
        outcomes = [*server.outcomes]
        if server.lane is not None:
            outcomes.append(self._sql(server, server.lane))
        if server.target is not None:
            outcomes.append(self._toggles.outcome(server.target))
        told = [Sample("mysqld_up", int(server.up))] if server.up is not None else []
        told += self.incidents(server.name) if server.target is not None else []
        return (*outcomes, Outcome("agent", True, 0.0, (*about(outcomes), *told)))

    def _sql(self, server: Server, lane: Lane) -> Outcome:
        outcome = lane.outcome()
        answered = Sample("sql_up", int(bool(outcome.samples)))
        memory = [one for one in server.outcomes if one.collector == "memory"]
        checked = [found for one in memory for found in differences(one, outcome.samples, self._checked)]
        return Outcome(
            outcome.collector,
            outcome.success,
            outcome.seconds,
            (*outcome.samples, answered, *checked),
            outcome.reason,
        )

    def _life(self, server: Server) -> Life:
        return Life(server.life, self.state.life)


def _silent(server: Server, seconds: float) -> tuple[Outcome, ...]:
    """What the sensor would have told, as failures: series must not just vanish."""
    if server.target is None:
        return ()
    names = server.collectors or _SENSOR_COLLECTORS
    return tuple(Outcome(name, False, seconds, (), "gone: the sensor does not answer") for name in names)


def _view(server: Server, outcomes: Iterable[Outcome]) -> ServerView:
    target = server.target
    what = f"{target.flavour} {target.version_text}, pid {target.pid}" if target else "on another host"
    collectors = tuple(
        (one.collector, None if one.success else ": ".join(failure(one)))
        for one in outcomes
        if one.collector != "agent"
    )
    return ServerView(server.name, what, server.up, collectors)
