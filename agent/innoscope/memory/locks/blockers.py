"""Find the connection that blocks each thread that waits for a row lock or a metadata lock, in each snapshot.

This must cost the sensor little. So what is known of a waiting thread is kept until the thread runs. If
reading takes n times the budget, only every n-th snapshot reads, and the others use its results.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final, NamedTuple

from innoscope.memory.locks import metadata, sessions
from innoscope.memory.locks.rows import RowWaits
from innoscope.memory.locks.sessions import Session
from innoscope.sampling.model import Blocked

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from innoscope.memory.locks.layout import LockLayout, Part, ProcessMemory

ROW: Final = "row_lock"
METADATA: Final = frozenset({"metadata_lock", "user_lock"})
#: Wait classes of threads whose blocker can be found.
BLOCKED: Final = METADATA | {ROW}
#: CPU seconds per snapshot. If a read takes n times as long, the next n snapshots use its results.
_BUDGET_S: Final = 0.001
#: Maximum snapshots without a read, and without a search among all connections.
_MOST_SKIPPED: Final = 9
_MOST_UNSEARCHED: Final = 60


class Waiter(NamedTuple):
    """A waiting thread: its wait class, connection (THD and id), and the number of times that it has run."""

    tid: int
    wait: str
    thd: int
    connection: int
    runs: int


class _Pace:
    """Decides in which snapshots to read, so that reading stays within the budget on average."""

    def __init__(self, clock: Callable[[], float], most_skipped: int) -> None:
        self._clock = clock
        self._most_skipped = most_skipped
        self._skip = 0
        self._began = 0.0

    def begin(self) -> bool:
        """Return whether to read in this snapshot. If so, call ``end`` after it."""
        if self._skip > 0:
            self._skip -= 1
            return False
        self._began = self._clock()
        return True

    def end(self) -> None:
        self._skip = min(int((self._clock() - self._began) / _BUDGET_S), self._most_skipped)


class _Results:
    """The results of the last read, for the snapshots that do not read."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._pace = _Pace(clock, _MOST_SKIPPED)
        self._found: dict[Waiter, Blocked] = {}

    def of(self, waiters: list[Waiter], read: Callable[[], dict[Waiter, Blocked]]) -> dict[Waiter, Blocked]:
        """Return the results for these waiters. Without a read, threads that have run since have none."""
        if not waiters:
            return {}
        if self._pace.begin():
            self._found = read()
            self._pace.end()
        return {one: self._found[one] for one in waiters if one in self._found}


class Blockers:
    """Finds blockers in a series of snapshots. Not thread-safe.

    Row locks and metadata locks have a budget each. ``clock`` returns CPU seconds.
    """

    def __init__(
        self,
        memory: ProcessMemory,
        layout: LockLayout,
        clock: Callable[[], float] = time.thread_time,
    ) -> None:
        self._memory, self._layout = memory, layout
        self._rows = RowWaits(memory, layout.rows) if layout.rows and layout.sessions else None
        self._metadata = _MetadataWaits(memory, layout, clock) if layout.metadata else None
        self._row_results, self._metadata_results = _Results(clock), _Results(clock)

    def find(self, waiters: Collection[Waiter], threads: Collection[int]) -> dict[int, Blocked]:
        """Return what each thread waits for, as far as it is known. Raise OSError or NativeError.

        ``threads`` contains the ids of the snapshot's threads, in the server's pid namespace. The caller has
        to check afterwards that the threads have not run.
        """
        found: dict[Waiter, Blocked] = {}
        if (rows := self._rows) is not None:
            of_rows = [one for one in waiters if one.wait == ROW]
            found |= self._row_results.of(of_rows, lambda: self._row_locks(of_rows, rows))
        if (other := self._metadata) is not None:
            of_others = [one for one in waiters if one.wait in METADATA]
            found |= self._metadata_results.of(of_others, lambda: other.find(of_others, threads))
        return {waiter.tid: blocked for waiter, blocked in found.items()}

    def _row_locks(self, waiters: list[Waiter], rows: RowWaits) -> dict[Waiter, Blocked]:
        sessions_ = self._layout.sessions
        assert sessions_ is not None  # noqa: S101
        found = rows.read({one.thd: one.runs for one in waiters})
        thds = list({one.blocker for one in found.values() if one.blocker})
        offset, size = sessions_.offset("connection"), sessions_.size("connection")
        numbers = self._memory.numbers([thd + offset for thd in thds], size)
        ids = dict(zip(thds, numbers, strict=True))
        return {
            waiter: Blocked(ids.get(one.blocker or 0) or None, one.name)
            for waiter in waiters
            if (one := found.get(waiter.thd)) is not None
        }


class _MetadataWaits:
    """Finds the holders of metadata locks.

    To find new holders, the locks of all connections are read, which is expensive. Otherwise, it is only read
    whether known holders still hold a lock.
    """

    def __init__(self, memory: ProcessMemory, layout: LockLayout, clock: Callable[[], float]) -> None:
        self._memory, self._layout = memory, layout
        self._pace = _Pace(clock, _MOST_UNSEARCHED)
        self._holders: dict[int, Session] = {}

    def find(self, waiters: list[Waiter], threads: Collection[int]) -> dict[Waiter, Blocked]:
        """Return what threads wait for. ``threads`` are the ids of all threads."""
        part = self._layout.sessions
        if part is None:
            return {}
        waiting = {one.tid: Session(one.thd, one.tid, one.connection, "") for one in waiters}
        found = self._read(waiting, self._current_holders(part))
        if not all(blocked.connection for blocked in found.values()) and self._pace.begin():
            everyone = sessions.read(self._memory, part, set(threads), with_text=False)
            found = self._read(waiting, {one.thread: one for one in everyone})
            self._pace.end()
        by_tid = {one.tid: one for one in waiters}
        return {by_tid[tid]: blocked for tid, blocked in found.items()}

    def _current_holders(self, part: Part) -> dict[int, Session]:
        """Return the known holders, except those whose connection has ended."""
        holders = self._holders.values()
        addresses = [one.address + part.offset("connection") for one in holders]
        ids = self._memory.numbers(addresses, part.size("connection"))
        return {one.thread: one for one, id_ in zip(holders, ids, strict=True) if one.connection == id_}

    def _read(self, waiting: Mapping[int, Session], holders: Mapping[int, Session]) -> dict[int, Blocked]:
        """Return what the threads in ``waiting`` wait for. Remember those of ``holders`` that hold a lock.

        If several connections hold a lock, the oldest one of those that do not wait themselves is named.
        """
        found = {}
        current: dict[int, Session] = {}
        for wait in metadata.waits(self._memory, self._layout, [*waiting.values()], [*holders.values()]):
            owners = [holders[owner] for owner in wait.owners]
            owners.sort(key=lambda one: (one.thread in waiting, one.connection))
            current |= {one.thread: one for one in owners[:1]}
            found[wait.waiter] = Blocked(owners[0].connection if owners else None, _object(wait.name))
        self._holders = current
        return found


def _object(name: str) -> str:
    """Return the name of a metadata lock without its kind, such as ``table db.t``."""
    return name.removeprefix(f"the {metadata.KIND} of ").removeprefix("the ").removeprefix("a ")
