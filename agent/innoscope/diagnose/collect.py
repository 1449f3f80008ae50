"""All evidence of one server, gathered at once within the seconds that were asked for."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, cast

from innoscope.common.errors import InnoscopeError
from innoscope.diagnose import process_list
from innoscope.diagnose.evidence import Evidence, Missing, Statement, described
from innoscope.diagnose.host import Host
from innoscope.diagnose.metric_readings import Readings
from innoscope.diagnose.rules import default_rules, metrics_read
from innoscope.diagnose.snapshot_loop import INTERVAL_S, Looker
from innoscope.diagnose.sql_queries import Asked, ask
from innoscope.memory.locks.owners import LockOwners
from innoscope.metrics.collectors import sql_catalog
from innoscope.metrics.collectors.memory import MemoryCollector
from innoscope.metrics.collectors.probes import ProbesCollector
from innoscope.metrics.collectors.process import ProcessCollector
from innoscope.metrics.collectors.sql import SqlCollector
from innoscope.metrics.collectors.toggles import TogglesFile
from innoscope.metrics.collectors.waits import open_eyes
from innoscope.sampling.snapshot_history import CLIENT, Looks
from innoscope.target import sql
from innoscope.target.discover import still_same

if TYPE_CHECKING:
    from collections.abc import Callable

    from innoscope.common.samples import Sample
    from innoscope.metrics.collectors.runner import Collector
    from innoscope.target.login import Connection
    from innoscope.target.model import Target

#: Seconds between two readings of all numbers, which the server pays for too, and how long one may take.
_EVERY_S: Final = 2.0
_PATIENCE_S: Final = 0.8
_SQL_TIMEOUT_S: Final = 1.0
#: So many looks are waited for, but not longer than so many seconds over the time: one look tells no
#: shares, and learning a server's names takes seconds on a busy host.
_LOOKS: Final = 4
_LONGER_S: Final = 20.0
_LOOKING_S: Final = 0.2
#: Seconds between two words on how far it is.
_TOLD_EVERY_S: Final = 1.0
#: Shares of the time after which the server is asked who holds what: once stacks were seen.
_ASK_AFTER: Final = 0.5
#: Looks older than this say nothing of how many wait now.
_RECENT_S: Final = 10.0
#: What the probes may cost, as a share of the server's CPUs. Less than the agent's: all that is looked with
#: is at work at once here, and the whole is to cost a server on two busy CPUs less than 3 %. The probes that
#: no finding reads had four tenths of what all of them may cost: without them the others are on as often.
_BUDGET_OF_ALL: Final = 0.004
_BUDGET_OF_READ: Final = 0.0024


@dataclass(frozen=True, slots=True)
class Sources:
    """What may be used."""

    sql: bool = True
    probes: bool = True
    defaults_file: str | None = None
    user: str | None = None
    #: Also those probes whose numbers no finding reads: for a file that tells people more than findings.
    all_probes: bool = True
    #: Asks the server for more, in the middle too: gets ``connect(seconds)`` and how many wait for row locks.
    also: Callable[[Callable[[float], Connection], int], None] | None = None


class Gathering:
    """One server's sources, opened at once. ``close`` takes the probes off, which may take seconds.

    What is older than ``span_s`` seconds is forgotten, and who holds locks is noted only from ``hold`` on;
    without it nothing is forgotten, and that is noted all the time. Looks are ``interval_s`` seconds apart.
    """

    def __init__(
        self,
        target: Target,
        sources: Sources,
        *,
        span_s: float | None = None,
        interval_s: float = INTERVAL_S,
    ) -> None:
        self._target, self._sources = target, sources
        self._host = Host(target.pid)
        self._lock_owners = LockOwners(target) if span_s is None else None
        self._looker = Looker(target, open_eyes, self._lock_owners, Looks(span_s), interval_s)
        self._probes = self._open_probes()
        self._readings = Readings(self._collectors(), span_s)

    def run(self, seconds: float, progress: Callable[[float], None] = lambda _: None) -> Evidence:
        """Look for so many seconds, once, or until the server ends; ``progress`` gets those gone by."""
        begun, clock = time.time(), time.monotonic()
        asked: Asked | None = None
        read_at = 0.0
        while self._goes_on(gone_by := time.monotonic() - clock, seconds):
            progress(gone_by)
            if asked is None and self._sources.sql and gone_by >= _ASK_AFTER * seconds:
                asked = self.ask()
            if gone_by >= read_at:
                self.read()
                read_at = gone_by + _EVERY_S
            rest = min(_TOLD_EVERY_S, max(seconds - gone_by, _LOOKING_S))
            time.sleep(max(0.0, rest - (time.monotonic() - clock - gone_by)))
        if still_same(self._target):
            if asked is None and self._sources.sql:  # a host too busy for rounds
                asked = self.ask()
            self.read()
        self._looker.close()  # a first look that takes longer than all of it is waited for
        return self.between(begun, time.time(), asked)

    def read(self) -> None:
        """One reading of all numbers."""
        self._readings.read(_PATIENCE_S)

    @property
    def looking(self) -> bool:
        """Whether there was a look, or it is known why there is none."""
        return bool(self._looker.looks.since(0)) or self._looker.blind is not None

    def _goes_on(self, gone_by: float, seconds: float) -> bool:
        few = self._looker.blind is None and len(self._looker.looks.since(0)) < _LOOKS
        longer = _LONGER_S if few else 0.0
        return gone_by < seconds + longer and still_same(self._target)

    def close(self) -> None:
        """End the looks, and take the probes off."""
        self._looker.close()
        self._readings.close()
        if self._probes is not None:
            self._probes.close()

    def hold(self) -> None:
        """Note from now on who holds the locks that others wait for, until ``release``."""
        self._looker.hold(LockOwners(self._target))
        self._lock_owners = None

    def release(self) -> None:
        """No more of that; ``between`` tells what was noted until the next ``hold``."""
        self._lock_owners = self._looker.hold(None)

    def glance(self, begun: float, ended: float) -> Evidence:
        """What was seen and read in that time."""
        return self.between(begun, ended)

    def between(self, begun: float, ended: float, asked: Asked | None = None) -> Evidence:
        """What was seen and read in that time (Unix), and what the server answered, if it was asked."""
        asked = asked or Asked()
        looks, seen, files, blind = self._looker.between(begun, ended)
        if blind and asked.statements:
            looks = (process_list.look(ended, asked.statements, asked.answers.get("transactions", ())),)
        snapshots, missing = self._readings.between(begun, ended)
        if "sql" in missing:
            missing["sql"] = _with_remedy(missing["sql"], asked)
        return Evidence(
            server=described(self._target),
            begun=begun,
            ended=ended,
            snapshots=snapshots,
            looks=looks,
            seen=seen,
            files=files,
            statements=self._with_threads(asked),
            owners=self._lock_owners.held_locks() if self._lock_owners is not None else (),
            answers=asked.answers,
            host=self._host.rates(),
            missing=missing | self._left_out() | ({"looks": blind} if blind else {}) | asked.missing,
        )

    def _open_probes(self) -> ProbesCollector | None:
        if not self._sources.probes:
            return None
        every = self._sources.all_probes
        return ProbesCollector(
            self._target,
            metrics=None if every else metrics_read(default_rules()),
            budget=_BUDGET_OF_ALL if every else _BUDGET_OF_READ,
            kinds=self._looker.kinds,
            attach_soon=True,
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

    def _connect(self, timeout_s: float = _SQL_TIMEOUT_S) -> Connection:
        return sql.connect(self._target, self._sources.defaults_file, self._sources.user, timeout_s)

    def ask(self) -> Asked:
        """Who holds what, as the server says; nothing that could wait for long."""
        looks = self._looker.looks.since(time.time() - _RECENT_S)
        waiting = looks[-1].threads.get((CLIENT, "row_lock"), 0) if looks else 0
        asked = ask(self._target, self._connect, waiting)
        if self._sources.also is not None:
            self._sources.also(self._connect, waiting)
        return asked

    def _left_out(self) -> dict[str, Missing]:
        words = {"sql": "--no-sql", "probes": "--no-probes"}
        return {
            name: Missing("unsupported", f"left out by {option}")
            for name, option in words.items()
            if not getattr(self._sources, name)
        }

    def _with_threads(self, asked: Asked) -> tuple[Statement, ...]:
        """The statements with the thread that runs each, as the server tells it, else its memory."""
        held = self._lock_owners.sessions if self._lock_owners is not None else ()
        sessions = {one.connection: one for one in held}
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
                connection.abandon()
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
