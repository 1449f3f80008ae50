"""In each snapshot, find the connection that blocks each thread waiting for a row lock or a metadata lock.

This must be cheap for the sensor. Therefore the facts about a waiting thread are cached until the thread
runs. If a read takes n times the budget, the next n snapshots use its results, and only verify the blockers
of row locks.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from innoscope.memory.locks import metadata, sessions
from innoscope.memory.locks.rows import RowWaits
from innoscope.memory.locks.sessions import Session
from innoscope.sampling.model import Blocked

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Container, Mapping

    from innoscope.memory.locks.layout import LockLayout, Part, ProcessMemory

ROW: Final = "row_lock"
METADATA: Final = frozenset({"metadata_lock", "user_lock"})
#: Wait classes of threads whose blocker can be found.
BLOCKED: Final = METADATA | {ROW}
#: CPU seconds per snapshot. If a read takes n times as long, the next n snapshots use its results.
_BUDGET_S: Final = 0.001
#: Maximum number of snapshots in a row without a read, and without a search among all connections.
_MOST_SKIPPED: Final = 9
_MOST_UNSEARCHED: Final = 60
#: Maximum number of blockers that are verified in a snapshot without a read.
_MOST_VERIFIED: Final = 16


class Waiter(NamedTuple):
    """A waiting thread: its wait class, connection (THD and id), and the number of times that it has run."""

    tid: int
    wait: str
    thd: int
    connection: int
    runs: int


class _Read(Protocol):
    """A function that reads what threads are waiting for. ``threads`` are the ids of all threads."""

    def __call__(self, waiters: list[Waiter], threads: Collection[int], /) -> dict[Waiter, Blocked]:
        """Return the results."""


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
    """The results of the last read, for the snapshots that do not read all waiters.

    ``verify`` reads some of the waiters again. Without it, results are used as they are.
    """

    def __init__(self, clock: Callable[[], float], read: _Read, verify: _Read | None = None) -> None:
        self._pace = _Pace(clock, _MOST_SKIPPED)
        self._read, self._verify = read, verify
        self._found: dict[Waiter, Blocked] = {}

    def of(self, waiters: list[Waiter], threads: Collection[int]) -> dict[Waiter, Blocked]:
        """Return the results for these waiters. Between reads, threads that have run since have none."""
        if not waiters:
            return {}
        if self._pace.begin():
            self._found = self._read(waiters, threads)
            self._pace.end()
            return dict(self._found)
        kept = {one: self._found[one] for one in waiters if one in self._found}
        return kept if self._verify is None else self._verified(kept, threads, self._verify)

    def _verified(
        self, kept: dict[Waiter, Blocked], threads: Collection[int], verify: _Read
    ) -> dict[Waiter, Blocked]:
        """Return the results whose blocker still blocks one of its waiters.

        A transaction holds its locks until it ends. After that, no thread waits for it any longer.
        """
        chosen = {blocked.connection: waiter for waiter, blocked in kept.items() if blocked.connection}
        again = verify(list(chosen.values())[:_MOST_VERIFIED], threads)
        blocking = {blocked.connection for waiter, blocked in again.items() if kept[waiter] == blocked}
        return {waiter: blocked for waiter, blocked in kept.items() if blocked.connection in blocking}


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
        self._results: list[tuple[Container[str], _Results]] = []
        if layout.sessions and layout.rows:
            rows = _RowLocks(memory, layout.sessions, RowWaits(memory, layout.rows))
            self._results.append(({ROW}, _Results(clock, rows.read, rows.verify)))
        if layout.sessions and layout.metadata:
            metadata_waits = _MetadataWaits(memory, layout, layout.sessions, clock)
            self._results.append((METADATA, _Results(clock, metadata_waits.read)))

    def find(self, waiters: Collection[Waiter], threads: Collection[int]) -> dict[int, Blocked]:
        """Return what each thread is waiting for, where known. Raise OSError or NativeError.

        ``threads`` contains the ids of the snapshot's threads, in the server's pid namespace. The caller has
        to check afterwards that the threads have not run.
        """
        found: dict[Waiter, Blocked] = {}
        for waits, results in self._results:
            found |= results.of([one for one in waiters if one.wait in waits], threads)
        return {waiter.tid: blocked for waiter, blocked in found.items()}


class _RowLocks:
    """Finds the holders of row locks."""

    def __init__(self, memory: ProcessMemory, part: Part, rows: RowWaits) -> None:
        self._memory, self._part, self._rows = memory, part, rows

    def read(self, waiters: list[Waiter], _: Collection[int]) -> dict[Waiter, Blocked]:
        """Return what threads are waiting for."""
        return self._of(waiters, partial=False)

    def verify(self, waiters: list[Waiter], _: Collection[int]) -> dict[Waiter, Blocked]:
        """Return what some of the waiting threads are waiting for."""
        return self._of(waiters, partial=True)

    def _of(self, waiters: list[Waiter], *, partial: bool) -> dict[Waiter, Blocked]:
        found = self._rows.read({one.thd: one.runs for one in waiters}, partial=partial)
        thds = list({one.blocker for one in found.values() if one.blocker})
        offset, size = self._part.offset("connection"), self._part.size("connection")
        numbers = self._memory.numbers([thd + offset for thd in thds], size)
        ids = dict(zip(thds, numbers, strict=True))
        return {
            waiter: Blocked(ids.get(one.blocker or 0) or None, one.name)
            for waiter in waiters
            if (one := found.get(waiter.thd)) is not None
        }


class _MetadataWaits:
    """Finds the holders of metadata locks.

    Finding new holders requires reading the locks of all connections, which is expensive. Between such
    searches, the known holders are read only to check that they still hold a lock.
    """

    def __init__(
        self, memory: ProcessMemory, layout: LockLayout, part: Part, clock: Callable[[], float]
    ) -> None:
        self._memory, self._layout, self._part = memory, layout, part
        self._pace = _Pace(clock, _MOST_UNSEARCHED)
        self._holders: dict[int, Session] = {}

    def read(self, waiters: list[Waiter], threads: Collection[int]) -> dict[Waiter, Blocked]:
        """Return what threads are waiting for."""
        waiting = {one.tid: Session(one.thd, one.tid, one.connection, "") for one in waiters}
        found = self._read(waiting, self._current_holders())
        if not all(blocked.connection for blocked in found.values()) and self._pace.begin():
            everyone = sessions.read(self._memory, self._part, set(threads), with_text=False)
            found = self._read(waiting, {one.thread: one for one in everyone})
            self._pace.end()
        by_tid = {one.tid: one for one in waiters}
        return {by_tid[tid]: blocked for tid, blocked in found.items()}

    def _current_holders(self) -> dict[int, Session]:
        """Return the known holders, except those whose connection has ended."""
        part, holders = self._part, self._holders.values()
        addresses = [one.address + part.offset("connection") for one in holders]
        ids = self._memory.numbers(addresses, part.size("connection"))
        return {one.thread: one for one, id_ in zip(holders, ids, strict=True) if one.connection == id_}

    def _read(self, waiting: Mapping[int, Session], holders: Mapping[int, Session]) -> dict[int, Blocked]:
        """Return what the ``waiting`` threads are waiting for. Remember the ``holders`` that hold a lock.

        If several connections hold a lock, the oldest one that is not waiting itself is named.
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
