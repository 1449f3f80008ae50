"""What the agent has of each server's last minutes: its gatherings, and the looks that the sensor keeps."""

from __future__ import annotations

import threading
import time
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol

from innoscope.daemon.protocol.client import SensorDown
from innoscope.diagnose import process_list
from innoscope.diagnose.evidence import Evidence, MetricReadings, Missing, described
from innoscope.diagnose.host import Host
from innoscope.diagnose.incident.server_facts import ServerFacts, fetch, not_fetched
from innoscope.diagnose.sql_queries import SqlAnswers, query_all
from innoscope.sampling.snapshot_history import CLIENT

if TYPE_CHECKING:
    from collections.abc import Mapping

    from innoscope.common.samples import Value
    from innoscope.daemon.agent.collect import Picture
    from innoscope.daemon.agent.servers import Server, Servers
    from innoscope.sampling.snapshot_history import Look, Seen
    from innoscope.target.model import Target

#: Looks older than this say nothing of how many wait now.
_RECENT_S: Final = 10.0
_SQL_TIMEOUT_S: Final = 1.0
#: What the host tells is of the last minute at the most, and of half of that at the least.
_HOST_S: Final = 30.0


class Sensor(Protocol):
    """What tells of looks: ``innoscope.daemon.protocol.client.SensorClient``."""

    def looks(
        self, server: str, begin: float, end: float, *, stacks: bool
    ) -> tuple[tuple[Look, ...], tuple[Seen, ...]]:
        """Looks between two Unix times."""


class Recorder:
    """One server process: numbers here, looks from the sensor. Safe to use from several threads."""

    def __init__(
        self, server: Server, target: Target, sensor: Sensor, its_name: str | None, span_s: float
    ) -> None:
        self.target = target
        self._server, self._sensor, self._its_name = server, sensor, its_name
        self._span_s = span_s
        self._lock = threading.Lock()
        self._snapshots: deque[MetricReadings] = deque()
        self._missing: dict[str, Missing] = {}
        self._fetched = ServerFacts()
        self._hosts = [(time.monotonic(), Host(target.pid))]

    def is_of(self, server: Server, its_name: str | None) -> bool:
        """Whether this goes on to be the recorder of that server."""
        there = server.target
        same = there is not None and (there.pid, there.start_time) == (
            self.target.pid,
            self.target.start_time,
        )
        return same and self._server is server and self._its_name == its_name

    def gathered(self, at: float, values: Mapping[str, Value], missing: Mapping[str, Missing]) -> None:
        """Take in one gathering, made at that Unix time; the same one a second time changes nothing."""
        with self._lock:
            last = self._snapshots[-1] if self._snapshots else MetricReadings(0.0, {})
            if at <= last.at:
                return
            known = last.values  # most do not change: one number serves for all of them
            shared = {key: known[key] if known.get(key) == value else value for key, value in values.items()}
            self._snapshots.append(MetricReadings(at, shared))
            self._missing = dict(missing)
            while self._snapshots[0].at < at - self._span_s:
                self._snapshots.popleft()
            if time.monotonic() - self._hosts[-1][0] > _HOST_S:
                self._hosts = [self._hosts[-1], (time.monotonic(), Host(self.target.pid))]

    def without_sql(self, begin: float, end: float) -> Evidence:
        """Numbers and looks of that time, without stacks."""
        return self._evidence(begin, end, None, stacks=False)

    def between(self, begin: float, end: float, sql_answers: SqlAnswers | None = None) -> Evidence:
        """All of that time, with what the server answered, if it was asked."""
        return self._evidence(begin, end, sql_answers, stacks=True)

    def begin(self) -> None:
        """A stall is being gathered. Owners of locks are in memory, which the agent may not read."""
        self._fetched = not_fetched(
            "unsupported", "SQL was disabled, or the server ended before it was queried"
        )

    def end(self) -> ServerFacts:
        """It is complete."""
        return self._fetched

    def query_locks(self) -> SqlAnswers:
        """What ``who`` asks, InnoDB's status and the variables."""
        lane = self._server.lane
        if lane is not None:
            self._fetched = fetch(lane.connect, self._waiting())
        return self.who()

    def who(self) -> SqlAnswers:
        """Who holds what, as the server says; nothing that could wait for long."""
        lane = self._server.lane
        if lane is None:
            return SqlAnswers()
        return query_all(self.target, partial(lane.connect, _SQL_TIMEOUT_S), self._waiting())

    def _waiting(self) -> int:
        """Threads that waited for row locks at the last look."""
        now = time.time()
        looks = self.without_sql(now - _RECENT_S, now).looks
        return looks[-1].threads.get((CLIENT, "row_lock"), 0) if looks else 0

    def _evidence(self, begin: float, end: float, asked: SqlAnswers | None, *, stacks: bool) -> Evidence:
        asked = asked or SqlAnswers()
        looks: tuple[Look, ...] = ()
        seen: tuple[Seen, ...] = ()
        blind: dict[str, Missing] = {}
        try:
            if self._its_name is not None:
                looks, seen = self._sensor.looks(self._its_name, begin, end, stacks=stacks)
        except SensorDown as error:
            blind["looks"] = Missing("gone", error.what, error.remedy)
        with self._lock:
            snapshots = tuple(one for one in self._snapshots if begin <= one.at <= end)
            missing, host = dict(self._missing), self._hosts[0][1]
        if self._server.lane is None:
            blind["sql"] = Missing("unsupported", "left out by sql.enabled = false of the agent")
        if not looks and "waits" in missing:
            blind.setdefault("looks", missing["waits"])
        if "looks" in blind and asked.statements:
            looks = (process_list.summary(end, asked.statements, asked.answers.get("transactions", ())),)
        return Evidence(
            server=described(self.target),
            begun=begin,
            ended=end,
            snapshots=snapshots,
            looks=looks,
            seen=seen,
            statements=asked.statements,
            answers=asked.answers,
            host=host.rates(),
            missing=missing | blind | asked.missing,
        )


class Recorders:
    """Those of all servers of this host, by the agent's name. ``span_s`` is how much of the past is kept."""

    def __init__(self, servers: Servers, sensor: Sensor, span_s: float) -> None:
        self._servers, self._sensor, self._span_s = servers, sensor, span_s
        self._lock = threading.Lock()
        self._known: dict[str, Recorder] = {}

    def gathered(self, at: float, picture: Picture) -> None:
        """Take in a gathering of all servers."""
        values: dict[str, dict[str, Value]] = {}
        for one in picture.series:
            values.setdefault(one.server, {})[".".join((one.metric.name, *one.labels))] = one.value
        missing = {view.name: _missing(view.collectors) for view in picture.servers}
        there_are = {server.name: server for server in self._servers if server.target is not None}
        with self._lock:
            self._known = {
                name: self._of(server) for name, server in there_are.items() if server.target is not None
            }
            known = list(self._known.items())
        for name, recorder in known:
            if name in values:
                recorder.gathered(at, values[name], missing.get(name, {}))

    def of(self, name: str) -> Recorder | None:
        """That of a server; None for one on another host, or of which nothing is known yet."""
        with self._lock:
            return self._known.get(name)

    def all(self) -> dict[str, Recorder]:
        """All of them."""
        with self._lock:
            return dict(self._known)

    def _of(self, server: Server) -> Recorder:
        """Another process under a known name begins anew; its numbers are not those of the other."""
        target: Any = server.target
        its_name = self._servers.sensor_s_name(server.name)
        known = self._known.get(server.name)
        if known is not None and known.is_of(server, its_name):
            return known
        return Recorder(server, target, self._sensor, its_name, self._span_s)


def _missing(collectors: tuple[tuple[str, str | None], ...]) -> dict[str, Missing]:
    found = {}
    for name, why in collectors:
        if why is not None:
            reason, _, words = why.partition(": ")
            found[name] = Missing(reason, words or reason)
    return found
