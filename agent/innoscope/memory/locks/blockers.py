"""In each snapshot, find the connection that blocks each thread waiting for a row lock or a metadata lock.

This must be cheap for the sensor. Therefore the facts about a waiting thread are cached until the thread
runs, and reads have a budget. If the budget is used up, a snapshot reuses the results of the last read, and
only verifies that the blockers still block a thread.
"""

from __future__ import annotations

import time
from collections import defaultdict
from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from innoscope.memory.locks import metadata, sessions
from innoscope.memory.locks.rows import RowWaits
from innoscope.memory.locks.sessions import ServerSession
from innoscope.sampling.model import Blocked

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Container, Mapping

    from innoscope.memory.locks.layout import LayoutPart, LockLayout, ProcessMemory

ROW: Final = "row_lock"
METADATA: Final = frozenset({"metadata_lock", "user_lock"})
#: Wait classes of threads whose blocker can be found.
BLOCKED: Final = METADATA | {ROW}
#: CPU seconds that each snapshot adds to a budget, and the maximum that is saved for reads of new waiters.
_ADDED_S: Final = 0.001
_MOST_SAVED_S: Final = 0.010
#: Maximum number of consecutive snapshots without a read.
_MOST_SKIPPED: Final = 9
#: Maximum number of times in a row that a search among all connections is skipped.
_MOST_UNSEARCHED: Final = 60
#: Maximum number of blockers that are verified in a snapshot without a read, and of waiters that are read for
#: each of them: more than one, because a waiter may just have been woken up.
_MOST_VERIFIED: Final = 16
_VERIFIED_WAITERS: Final = 2


class Waiter(NamedTuple):
    """A waiting thread: its wait class, connection (THD and id), and the number of times that it has run."""

    tid: int
    wait: str
    thd: int
    connection: int
    runs: int


class _Read(Protocol):
    """A function that finds the lock and the blocker of each waiter.

    ``threads`` contains the ids of all threads.
    """

    def __call__(self, waiters: list[Waiter], threads: Collection[int], /) -> dict[Waiter, Blocked]:
        """Return the results."""


class _Budget:
    """The CPU time for one kind of read. It is saved up while no reads are needed, and may be overdrawn."""

    def __init__(self, clock: Callable[[], float], most_skipped: int) -> None:
        self._clock = clock
        self._most_overdrawn_s = most_skipped * _ADDED_S
        self._left_s = _MOST_SAVED_S
        self._began = 0.0

    def add(self) -> None:
        """Add the time of one snapshot."""
        self._left_s = min(self._left_s + _ADDED_S, _MOST_SAVED_S)

    def begin(self) -> bool:
        """Return whether any time is left for a read. If so, call ``end`` after the read."""
        self._began = self._clock()
        return self._left_s > 0

    def end(self) -> None:
        self._left_s = max(self._left_s - (self._clock() - self._began), -self._most_overdrawn_s)


class _Results:
    """The results of the last read, for the snapshots that do not read all waiters.

    ``verify`` reads some of the waiters again. It has its own budget; beyond it, a snapshot uses the
    results as they are.
    """

    def __init__(self, clock: Callable[[], float], read: _Read, verify: _Read) -> None:
        self._reading, self._verifying = _Budget(clock, _MOST_SKIPPED), _Budget(clock, _MOST_SKIPPED)
        self._read, self._verify = read, verify
        self._found: dict[Waiter, Blocked] = {}

    def of(self, waiters: list[Waiter], threads: Collection[int]) -> dict[Waiter, Blocked]:
        """Return the results for these waiters. Threads that ran since the last read have none."""
        self._reading.add()
        self._verifying.add()
        if not waiters:
            return {}
        if self._reading.begin():
            self._found = self._read(waiters, threads)
            self._reading.end()
            return dict(self._found)
        self._found = {one: self._found[one] for one in waiters if one in self._found}
        if self._verifying.begin():
            self._found = self._verified(self._found, threads)
            self._verifying.end()
        return dict(self._found)

    def _verified(self, kept: dict[Waiter, Blocked], threads: Collection[int]) -> dict[Waiter, Blocked]:
        """Return the results whose blocker still blocks one of its waiters.

        Only two waiters of each blocker are read again. A blocker keeps its locks until its transaction ends
        (user locks: until it releases them), and then blocks none of its waiters. So if one waiter is still
        blocked by it, its other results are kept too.
        """
        chosen: defaultdict[int, list[Waiter]] = defaultdict(list)
        for waiter, blocked in kept.items():
            if blocked.connection:
                chosen[blocked.connection].append(waiter)
        groups = islice(chosen.values(), _MOST_VERIFIED)
        again = self._verify([one for group in groups for one in group[:_VERIFIED_WAITERS]], threads)
        blocking = {blocked.connection for waiter, blocked in again.items() if kept[waiter] == blocked}
        return {waiter: blocked for waiter, blocked in kept.items() if blocked.connection in blocking}


class Blockers:
    """Finds blockers in a series of snapshots. Not thread-safe.

    Row locks and metadata locks have separate budgets. ``clock`` returns CPU seconds.
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
            self._results.append((METADATA, _Results(clock, metadata_waits.read, metadata_waits.verify)))

    def find(self, waiters: Collection[Waiter], threads: Collection[int]) -> dict[int, Blocked]:
        """Return, for each waiter's thread id, its lock and the connection that blocks it, where known.

        Raise OSError or NativeError if the server's memory cannot be read.

        ``threads`` contains the ids of the snapshot's threads, in the server's pid namespace. The caller has
        to check afterwards that the threads have not run.
        """
        found: dict[Waiter, Blocked] = {}
        for waits, results in self._results:
            found |= results.of([one for one in waiters if one.wait in waits], threads)
        return {waiter.tid: blocked for waiter, blocked in found.items()}


class _RowLocks:
    """Finds the holders of row locks."""

    def __init__(self, memory: ProcessMemory, part: LayoutPart, rows: RowWaits) -> None:
        self._memory, self._part, self._rows = memory, part, rows

    def read(self, waiters: list[Waiter], _: Collection[int]) -> dict[Waiter, Blocked]:
        """Return, for each waiter, the lock that it is waiting for and the connection that blocks it."""
        return self._of(waiters, partial=False)

    def verify(self, waiters: list[Waiter], _: Collection[int]) -> dict[Waiter, Blocked]:
        """Do the same as ``read`` for only some of the waiters, to verify earlier results."""
        return self._of(waiters, partial=True)

    def _of(self, waiters: list[Waiter], *, partial: bool) -> dict[Waiter, Blocked]:
        found = self._rows.read({one.thd: one.runs for one in waiters}, partial=partial)
        thds = list({one.blocker for one in found.values() if one.blocker})
        threads = sessions.threads_of(self._memory, self._members("thread", thds))
        known = zip(self._members("connection", thds), threads, strict=True)
        holders = dict(zip(thds, known, strict=True))
        result = {}
        for waiter in waiters:
            if (one := found.get(waiter.thd)) is not None:
                connection, thread = holders.get(one.blocker or 0, (0, 0))
                result[waiter] = Blocked(connection or None, one.name, thread or None)
        return result

    def _members(self, name: str, thds: list[int]) -> list[int]:
        offset, size = self._part.offset(name), self._part.size(name)
        return self._memory.numbers([thd + offset for thd in thds], size)


class _MetadataWaits:
    """Finds the holders of metadata locks.

    Finding new holders requires reading the locks of all connections, which is expensive. Between such
    searches, the known holders are read only to check that they still hold a lock.
    """

    def __init__(
        self, memory: ProcessMemory, layout: LockLayout, part: LayoutPart, clock: Callable[[], float]
    ) -> None:
        self._memory, self._layout, self._part = memory, layout, part
        self._searching = _Budget(clock, _MOST_UNSEARCHED)
        self._holders: dict[int, ServerSession] = {}

    def read(self, waiters: list[Waiter], threads: Collection[int]) -> dict[Waiter, Blocked]:
        """Return, for each waiter, the lock that it is waiting for and the connection that blocks it."""
        self._searching.add()
        found, self._holders = self._of(waiters, self._current_holders())
        if not all(blocked.connection for blocked in found.values()) and self._searching.begin():
            everyone = sessions.read(self._memory, self._part, set(threads), with_text=False)
            found, self._holders = self._of(waiters, {one.thread: one for one in everyone})
            self._searching.end()
        return found

    def verify(self, waiters: list[Waiter], _: Collection[int]) -> dict[Waiter, Blocked]:
        """Do the same as ``read`` for only some of the waiters, without searching for new holders.

        The holder of a lock may block only the first thread in the queue, which may not be among ``waiters``.
        Therefore a known holder counts if it still holds the lock, whatever the type of its ticket.
        """
        return self._of(waiters, self._current_holders(), of_any_type=True)[0]

    def _current_holders(self) -> dict[int, ServerSession]:
        """Return the known holders, except those whose connection has ended."""
        part, holders = self._part, self._holders.values()
        addresses = [one.address + part.offset("connection") for one in holders]
        ids = self._memory.numbers(addresses, part.size("connection"))
        return {one.thread: one for one, id_ in zip(holders, ids, strict=True) if one.connection == id_}

    def _of(
        self, waiters: list[Waiter], holders: Mapping[int, ServerSession], *, of_any_type: bool = False
    ) -> tuple[dict[Waiter, Blocked], dict[int, ServerSession]]:
        """Return the lock and the blocker of each waiter, and the blockers among ``holders``, by thread.

        If several connections hold a lock, the blocker is the oldest one that is not waiting itself.
        """
        by_tid = {one.tid: one for one in waiters}
        waiting = [ServerSession(one.thd, one.tid, one.connection, "") for one in waiters]
        found: dict[Waiter, Blocked] = {}
        named: dict[int, ServerSession] = {}
        waits = metadata.waits(
            self._memory, self._layout, waiting, [*holders.values()], of_any_type=of_any_type
        )
        for wait in waits:
            owners = [holders[owner] for owner in wait.owners]
            owners.sort(key=lambda one: (one.thread in by_tid, one.connection))
            named |= {one.thread: one for one in owners[:1]}
            holder = (owners[0].connection, owners[0].thread) if owners else (None, None)
            found[by_tid[wait.waiter]] = Blocked(holder[0], _object(wait.name), holder[1])
        return found, named


def _object(name: str) -> str:
    """Return the name of a metadata lock without its kind, such as ``table db.t``."""
    return name.removeprefix(f"the {metadata.KIND} of ").removeprefix("the ").removeprefix("a ")
