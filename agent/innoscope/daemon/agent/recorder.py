"""Store the last few minutes of each server's scrapes, and fetch the snapshots that the sensor stores."""

from __future__ import annotations

import threading
import time
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol

from innoscope.common import slowness
from innoscope.daemon.protocol.client import SensorDown
from innoscope.diagnose import process_list
from innoscope.diagnose.evidence import Evidence, MetricReadings, MissingSource, described
from innoscope.diagnose.host import HostCounters
from innoscope.diagnose.incident.server_facts import ServerFacts, fetch, not_fetched
from innoscope.diagnose.sql_queries import SqlAnswers, query_all
from innoscope.sampling.snapshot_history import CLIENT

if TYPE_CHECKING:
    from collections.abc import Mapping

    from innoscope.common.samples import Value
    from innoscope.daemon.agent.collect import Scrape
    from innoscope.daemon.agent.servers import ObservedServer, Servers
    from innoscope.sampling.snapshot_history import ObservedStack, SnapshotSummary
    from innoscope.target.model import Target

#: Maximum age, in seconds, of the snapshot in which waiting threads are counted.
_RECENT_S: Final = 10.0
_SQL_TIMEOUT_S: Final = 1.0
#: Pause after a failed request, in seconds, before the sensor is queried again.
_SENSOR_PAUSE_S: Final = 1.0
#: Seconds between baselines of the host's counters. Rates are computed over one to two intervals.
_HOST_S: Final = 30.0


class SnapshotsApi(Protocol):
    """The part of ``SensorClient`` that returns snapshots."""

    def snapshots(
        self, server: str, begin: float, end: float, *, stacks: bool
    ) -> tuple[tuple[SnapshotSummary, ...], tuple[ObservedStack, ...]]:
        """Return the snapshots between two Unix times, and their stacks on request."""


class _PausingApi:
    """Requests snapshots. For ``_SENSOR_PAUSE_S`` after a failure, raises the same error without a request.

    Otherwise, a hung sensor would delay a loop over all servers by one timeout per server.
    """

    def __init__(self, sensor: SnapshotsApi) -> None:
        self._sensor = sensor
        self._failure: tuple[float, SensorDown] | None = None

    def snapshots(
        self, server: str, begin: float, end: float, *, stacks: bool
    ) -> tuple[tuple[SnapshotSummary, ...], tuple[ObservedStack, ...]]:
        """Return what the sensor returns. Raise SensorDown if it fails or has just failed."""
        failure = self._failure
        if failure is not None and time.monotonic() - failure[0] < _SENSOR_PAUSE_S:
            raise SensorDown(failure[1].what, remedy=failure[1].remedy)
        try:
            return self._sensor.snapshots(server, begin, end, stacks=stacks)
        except SensorDown as error:
            self._failure = time.monotonic(), error
            raise


class ServerRecorder:
    """Records the metrics of a server process, and fetches its snapshots from the sensor. Thread-safe.

    ``sensor_name`` is the sensor's name for the server; None if the sensor has not reported the server.
    """

    def __init__(
        self,
        server: ObservedServer,
        target: Target,
        sensor: SnapshotsApi,
        sensor_name: str | None,
        span_s: float,
    ) -> None:
        self.target = target
        self._server, self._sensor, self._sensor_name = server, sensor, sensor_name
        self._span_s = span_s
        self._lock = threading.Lock()
        self._readings: deque[MetricReadings] = deque()
        self._missing: dict[str, MissingSource] = {}
        self.begin()
        self._hosts = [(time.monotonic(), HostCounters(target.pid))]

    def belongs_to(self, server: ObservedServer, sensor_name: str | None) -> bool:
        """Return whether this recorder is for the server's current process and sensor name."""
        target = server.target
        same_process = target is not None and (target.pid, target.start_time) == (
            self.target.pid,
            self.target.start_time,
        )
        return same_process and self._server is server and self._sensor_name == sensor_name

    def add_scrape(
        self, at: float, values: Mapping[str, Value], missing: Mapping[str, MissingSource]
    ) -> None:
        """Add a scrape made at Unix time ``at``. Adding the same scrape twice has no effect."""
        with self._lock:
            last = self._readings[-1] if self._readings else MetricReadings(0.0, {})
            if at <= last.at:
                return
            known = last.values  # most values do not change: share the object instead of storing a copy
            shared = {key: known[key] if known.get(key) == value else value for key, value in values.items()}
            self._readings.append(MetricReadings(at, shared))
            self._missing = dict(missing)
            while self._readings[0].at < at - self._span_s:
                self._readings.popleft()
            if time.monotonic() - self._hosts[-1][0] > _HOST_S:
                self._hosts = [self._hosts[-1], (time.monotonic(), HostCounters(self.target.pid))]

    def without_sql(self, begin: float, end: float) -> Evidence:
        """Return the metrics and snapshots between two Unix times, without stacks."""
        return self._evidence(begin, end, None, stacks=False)

    def between(self, begin: float, end: float, asked: SqlAnswers | None = None) -> Evidence:
        """Return all evidence between two Unix times, including the SQL results ``asked`` if given."""
        return self._evidence(begin, end, asked, stacks=True)

    def begin(self) -> None:
        """Start a capture. Until ``query_locks`` is called, it has no facts about the server."""
        self._fetched = not_fetched(
            "unsupported", "SQL is disabled, or the server exited before it was queried"
        )

    def end(self) -> ServerFacts:
        """End the capture. Return the facts that were queried over SQL."""
        return self._fetched

    def query_locks(self) -> SqlAnswers:
        """Query the lock owners, InnoDB's status and the variables over SQL. Return the lock owners."""
        channel = self._server.channel
        if channel is not None and self._fetched.missing:
            self._fetched = fetch(channel.connect, self._waiting())
        return self.query_blockers()

    def query_blockers(self) -> SqlAnswers:
        """Return the lock owners, queried over SQL with a timeout of 1 s per statement.

        Without SQL, return no answers.
        """
        channel = self._server.channel
        if channel is None:
            return SqlAnswers()
        return query_all(
            self.target, partial(channel.connect, slowness.scaled(_SQL_TIMEOUT_S)), self._waiting()
        )

    def _waiting(self) -> int:
        """Return the number of client threads waiting for row locks; 0 if there is no recent snapshot."""
        now = time.time()
        snapshots = self.without_sql(now - _RECENT_S, now).snapshots
        return snapshots[-1].threads.get((CLIENT, "row_lock"), 0) if snapshots else 0

    def _evidence(self, begin: float, end: float, asked: SqlAnswers | None, *, stacks: bool) -> Evidence:
        asked = asked or SqlAnswers()
        snapshots: tuple[SnapshotSummary, ...] = ()
        seen: tuple[ObservedStack, ...] = ()
        unavailable: dict[str, MissingSource] = {}
        try:
            if self._sensor_name is not None:
                snapshots, seen = self._sensor.snapshots(self._sensor_name, begin, end, stacks=stacks)
        except SensorDown as error:
            unavailable["looks"] = MissingSource("gone", error.what, error.remedy)
        with self._lock:
            readings = tuple(one for one in self._readings if begin <= one.at <= end)
            missing, host = dict(self._missing), self._hosts[0][1]
        if self._server.channel is None:
            unavailable["sql"] = MissingSource("unsupported", "disabled by sql.enabled = false of the agent")
        if not snapshots and "waits" in missing:
            unavailable.setdefault("looks", missing["waits"])
        if "looks" in unavailable and asked.statements:
            snapshots = (process_list.summary(end, asked.statements, asked.answers.get("transactions", ())),)
        return Evidence(
            server=described(self.target),
            begun=begin,
            ended=end,
            readings=readings,
            snapshots=snapshots,
            seen=seen,
            statements=asked.statements,
            answers=asked.answers,
            host=host.rates(),
            missing=missing | unavailable | asked.missing,
        )


class Recorders:
    """The recorders for the servers on this host, by server name.

    Scrapes are stored for ``span_s`` seconds.
    """

    def __init__(self, servers: Servers, sensor: SnapshotsApi, span_s: float) -> None:
        self._servers, self._sensor, self._span_s = servers, _PausingApi(sensor), span_s
        self._lock = threading.Lock()
        self._known: dict[str, ServerRecorder] = {}

    def add_scrape(self, at: float, scrape: Scrape) -> None:
        """Add a scrape of all servers, made at Unix time ``at``."""
        values: dict[str, dict[str, Value]] = {}
        for one in scrape.series:
            values.setdefault(one.server, {})[".".join((one.metric.name, *one.labels))] = one.value
        missing = {view.name: _missing(view.collectors) for view in scrape.servers}
        local = {server.name: server for server in self._servers if server.target is not None}
        with self._lock:
            self._known = {
                name: self._of(server) for name, server in local.items() if server.target is not None
            }
            known = list(self._known.items())
        for name, recorder in known:
            if name in values:
                recorder.add_scrape(at, values[name], missing.get(name, {}))

    def of(self, name: str) -> ServerRecorder | None:
        """Return a server's recorder; None if the server is on another host or has not been scraped yet."""
        with self._lock:
            return self._known.get(name)

    def all(self) -> dict[str, ServerRecorder]:
        """Return all recorders by server name."""
        with self._lock:
            return dict(self._known)

    def _of(self, server: ObservedServer) -> ServerRecorder:
        """Return the server's recorder. Create one if the process or the sensor's name for it has changed."""
        target: Any = server.target
        sensor_name = self._servers.sensor_name_of(server.name)
        known = self._known.get(server.name)
        if known is not None and known.belongs_to(server, sensor_name):
            return known
        return ServerRecorder(server, target, self._sensor, sensor_name, self._span_s)


def _missing(collectors: tuple[tuple[str, str | None], ...]) -> dict[str, MissingSource]:
    found = {}
    for name, why in collectors:
        if why is not None:
            reason, _, words = why.partition(": ")
            found[name] = MissingSource(reason, words or reason)
    return found
