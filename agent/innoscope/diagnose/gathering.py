"""All evidence of one server, gathered at once within the seconds that were asked for."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, cast

from innoscope.collectors import sql_catalog
from innoscope.collectors.memory import MemoryCollector
from innoscope.collectors.probes import ProbesCollector
from innoscope.collectors.process import ProcessCollector
from innoscope.collectors.sql import SqlCollector
from innoscope.collectors.toggles import TogglesFile
from innoscope.collectors.waits import open_eyes
from innoscope.diagnose.asking import Asked, ask
from innoscope.diagnose.evidence import CLIENT, Evidence, Missing
from innoscope.diagnose.host import Host
from innoscope.diagnose.looking import Looker
from innoscope.diagnose.numbers import Readings
from innoscope.errors import InnoscopeError
from innoscope.probes.governor import DEFAULT_BUDGET
from innoscope.target import sql
from innoscope.target.discover import still_same

if TYPE_CHECKING:
    from collections.abc import Callable

    from innoscope.collectors.runner import Collector
    from innoscope.diagnose.evidence import Statement
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


def gather(
    target: Target,
    seconds: float,
    sources: Sources,
    progress: Callable[[float], None] = lambda _: None,
) -> Evidence:
    """Look for so many seconds, or until the server ends. ``progress`` gets the seconds that have gone by."""
    begun, clock = time.time(), time.monotonic()
    host = Host(target.pid)
    looker = Looker(target, open_eyes)
    probes = _probes(target, sources, looker)
    connect = partial(sql.connect, target, sources.defaults_file, sources.user, _SQL_TIMEOUT_S)
    readings = Readings(_collectors(target, sources, looker, probes, connect))
    asked: Asked | None = None
    try:
        while (gone_by := time.monotonic() - clock) < seconds and still_same(target):
            progress(gone_by)
            if asked is None and sources.sql and gone_by >= _ASK_AFTER * seconds:
                asked = ask(target, connect, _waiting(looker))
            readings.read(_PATIENCE_S)
            time.sleep(max(0.0, min(_EVERY_S, seconds - gone_by) - (time.monotonic() - clock - gone_by)))
        ended = time.time()
    finally:
        looks, seen, blind = looker.close()
        snapshots, missing = readings.close()
        if probes is not None:
            probes.close()
    missing |= _left_out(sources) | ({"looks": blind} if blind else {}) | (asked.missing if asked else {})
    return Evidence(
        server=_server(target),
        begun=begun,
        ended=ended,
        snapshots=snapshots,
        looks=looks,
        seen=seen,
        statements=_with_threads(target, connect, asked),
        answers=asked.answers if asked else {},
        host=host.rates(),
        missing=missing,
    )


def _probes(target: Target, sources: Sources, looker: Looker) -> ProbesCollector | None:
    if not sources.probes:
        return None
    return ProbesCollector(target, budget=sources.probe_budget, kinds=looker.kinds, attach_soon=True)


def _collectors(
    target: Target,
    sources: Sources,
    looker: Looker,
    probes: ProbesCollector | None,
    connect: Callable[[], Any],
) -> list[Collector]:
    every: list[Collector] = [
        ProcessCollector(target, looker.kinds),
        cast("Collector", MemoryCollector(target)),
        _Toggles(target),
    ]
    if probes is not None:
        every.append(probes)
    if sources.sql:
        every.append(
            SqlCollector(connect, sql_catalog.default(), target.flavour, target.version, _SQL_TIMEOUT_S)
        )
    return every


class _Toggles:
    """The file of `innoscope toggle` as a collector."""

    name = "toggles"
    timeout = 0.5

    def __init__(self, target: Target) -> None:
        self._target, self._file = target, TogglesFile()

    def collect(self) -> tuple[Sample, ...]:
        self._file.read()
        return self._file.outcome(self._target).samples


def _waiting(looker: Looker) -> float:
    """Threads that waited for row locks at the last look."""
    looks = looker.looks
    return float(looks[-1].threads.get((CLIENT, "row_lock"), 0)) if looks else 0.0


def _left_out(sources: Sources) -> dict[str, Missing]:
    words = {"sql": "--no-sql", "probes": "--no-probes"}
    return {
        name: Missing("unsupported", f"left out by {option}")
        for name, option in words.items()
        if not getattr(sources, name)
    }


def _with_threads(target: Target, connect: Callable[[], Any], asked: Asked | None) -> tuple[Statement, ...]:
    """The statements, with the thread that runs each where the server tells it."""
    if asked is None:
        return ()
    statements = asked.statements
    try:
        connection = connect()
        try:
            threads = {one.connection_id: tid for tid, one in sql.queries(target, connection).items()}
        finally:
            connection._force_close()
    except InnoscopeError:
        return statements  # MySQL before 5.7 does not tell threads
    return tuple(replace(one, tid=threads.get(one.connection)) for one in statements)


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
