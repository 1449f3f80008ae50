"""All evidence of one server, gathered at once within the seconds that were asked for."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, cast

from innoscope.collectors import sql_catalog
from innoscope.collectors.memory import MemoryCollector
from innoscope.collectors.probes import ProbesCollector
from innoscope.collectors.process import ProcessCollector
from innoscope.collectors.sql import SqlCollector
from innoscope.collectors.toggles import TogglesFile
from innoscope.collectors.waits import open_eyes
from innoscope.diagnose import states
from innoscope.diagnose.asking import Asked, ask
from innoscope.diagnose.evidence import CLIENT, Evidence, Missing, Statement
from innoscope.diagnose.holding import Holding
from innoscope.diagnose.host import Host
from innoscope.diagnose.looking import Looker
from innoscope.diagnose.numbers import Readings
from innoscope.errors import InnoscopeError
from innoscope.probes.governor import DEFAULT_BUDGET
from innoscope.target import sql
from innoscope.target.discover import still_same

if TYPE_CHECKING:
    from collections.abc import Callable

    from pymysql.connections import Connection

    from innoscope.collectors.runner import Collector
    from innoscope.metrics.model import Sample
    from innoscope.target.model import Target

#: Seconds between two readings of all numbers, and how long one of them may take.
_EVERY_S: Final = 1.0
_PATIENCE_S: Final = 0.8
_SQL_TIMEOUT_S: Final = 1.0
#: Shares of the time after which the server is asked who holds what: once stacks were seen.
_ASK_AFTER: Final = 0.5


@dataclass(frozen=True, slots=True)
class Sources:
    """What may be used."""

    sql: bool = True
    probes: bool = True
    defaults_file: str | None = None
    user: str | None = None
    probe_budget: float = DEFAULT_BUDGET


class Gathering:
    """One server's sources, opened at once. ``close`` takes the probes off, which may take seconds."""

    def __init__(self, target: Target, sources: Sources) -> None:
        self._target, self._sources = target, sources
        self._host = Host(target.pid)
        self._holding = Holding(target)
        self._looker = Looker(target, open_eyes, self._holding)
        self._probes = self._open_probes()
        self._readings = Readings(self._collectors())

    def run(self, seconds: float, progress: Callable[[float], None] = lambda _: None) -> Evidence:
        """Look for so many seconds, once, or until the server ends; ``progress`` gets those gone by."""
        begun, clock = time.time(), time.monotonic()
        asked: Asked | None = None
        while (gone_by := time.monotonic() - clock) < seconds and still_same(self._target):
            progress(gone_by)
            if asked is None and self._sources.sql and gone_by >= _ASK_AFTER * seconds:
                asked = self._ask()
            self._readings.read(_PATIENCE_S)
            rest = min(_EVERY_S, seconds - gone_by) - (time.monotonic() - clock - gone_by)
            time.sleep(max(0.0, rest))
        return self._told(begun, asked or Asked())

    def close(self) -> None:
        """Take the probes off."""
        if self._probes is not None:
            self._probes.close()

    def _told(self, begun: float, asked: Asked) -> Evidence:
        ended = time.time()
        looks, seen, blind = self._looker.close()
        if blind and asked.statements:
            looks = (states.look(ended, asked.statements, asked.answers.get("transactions", ())),)
        snapshots, missing = self._readings.close()
        if "sql" in missing:
            missing["sql"] = _with_remedy(missing["sql"], asked)
        return Evidence(
            server=_server(self._target),
            begun=begun,
            ended=ended,
            snapshots=snapshots,
            looks=looks,
            seen=seen,
            statements=self._with_threads(asked),
            owners=self._holding.told(),
            answers=asked.answers,
            host=self._host.rates(),
            missing=missing | self._left_out() | ({"looks": blind} if blind else {}) | asked.missing,
        )

    def _open_probes(self) -> ProbesCollector | None:
        if not self._sources.probes:
            return None
        return ProbesCollector(
            self._target, budget=self._sources.probe_budget, kinds=self._looker.kinds, attach_soon=True
        )

    def _collectors(self) -> list[Collector]:
        target = self._target
        every: list[Collector] = [
            ProcessCollector(target, self._looker.kinds),
            cast("Collector", MemoryCollector(target)),
            _Toggles(target),
        ]
        if self._probes is not None:
            every.append(self._probes)
        if self._sources.sql:
            catalog = sql_catalog.default()
            every.append(SqlCollector(self._connect, catalog, target.flavour, target.version, _SQL_TIMEOUT_S))
        return every

    def _connect(self) -> Connection[Any]:
        return sql.connect(self._target, self._sources.defaults_file, self._sources.user, _SQL_TIMEOUT_S)

    def _ask(self) -> Asked:
        looks = self._looker.looks
        waiting = looks[-1].threads.get((CLIENT, "row_lock"), 0) if looks else 0
        return ask(self._target, self._connect, waiting)

    def _left_out(self) -> dict[str, Missing]:
        words = {"sql": "--no-sql", "probes": "--no-probes"}
        return {
            name: Missing("unsupported", f"left out by {option}")
            for name, option in words.items()
            if not getattr(self._sources, name)
        }

    def _with_threads(self, asked: Asked) -> tuple[Statement, ...]:
        """The statements with the thread that runs each, as the server tells it, else its memory."""
        sessions = {one.connection: one for one in self._holding.sessions}
        if not asked.statements:
            return tuple(
                Statement(one.connection, "", "", "", "", 0, one.text, one.thread)
                for one in sessions.values()
            )
        told = self._threads()
        return tuple(
            replace(
                one, tid=told.get(one.connection) or getattr(sessions.get(one.connection), "thread", None)
            )
            for one in asked.statements
        )

    def _threads(self) -> dict[int, int]:
        """``{connection: thread}`` over SQL; MySQL before 5.7 does not tell them."""
        try:
            connection = self._connect()
            try:
                return {one.connection_id: tid for tid, one in sql.queries(self._target, connection).items()}
            finally:
                connection._force_close()  # type: ignore[attr-defined]
        except InnoscopeError:
            return {}


def _with_remedy(missing: Missing, asked: Asked) -> Missing:
    """Why SQL is not to be had, with what helps: only those who ask questions are told that."""
    told = next((one for one in asked.missing.values() if one.remedy and one.reason == missing.reason), None)
    if told is None:
        return missing
    return replace(told, words=told.words.removesuffix(f" ({told.remedy})"))


class _Toggles:
    """The file of `innoscope toggle` as a collector."""

    name = "toggles"
    timeout = 0.5

    def __init__(self, target: Target) -> None:
        self._target, self._file = target, TogglesFile()

    def collect(self) -> tuple[Sample, ...]:
        self._file.read()
        return self._file.outcome(self._target).samples


def _server(target: Target) -> dict[str, str]:
    return {
        "flavour": target.flavour,
        "version": target.version_text or ".".join(map(str, target.version)),
        "pid": str(target.pid),
        "start_time": str(target.start_time),
        "build_id": target.build_id or "",
        "socket": target.socket or "",
        "symbols": target.symbols,
    }
