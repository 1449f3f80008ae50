"""Find the holders of row locks, in the snapshot in which the most threads waited for row locks."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Final

from innoscope.memory.locks.held import HeldLock
from innoscope.memory.locks.rows import RowWaits

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from innoscope.memory.locks.layout import LayoutPart, ProcessMemory
    from innoscope.memory.locks.rows import RowWait
    from innoscope.memory.locks.sessions import ServerSession
    from innoscope.sampling.model import Thread

#: Wait class of the waiting threads.
WAIT: Final = "row_lock"
_KIND: Final = "row lock"


class HeldRows:
    """The holders of one snapshot. Not thread-safe.

    Holders of different snapshots are not combined: each may have waited for the other at another time, which
    would look like a cycle.
    """

    def __init__(self, memory: ProcessMemory) -> None:
        self._memory = memory
        self._most = 1
        #: The locks of the snapshot, those with the most waiting threads first.
        self.locks: tuple[HeldLock, ...] = ()

    def note(
        self, part: LayoutPart, sessions: Sequence[ServerSession], threads: Mapping[int, Thread]
    ) -> None:
        """Read the holders for this snapshot, unless more threads waited in an earlier one.

        ``sessions`` contains the connections that ``threads`` are serving. Raise OSError or NativeError if
        the server's memory cannot be read.
        """
        served = {one.address: one.thread for one in sessions}
        waiting = [address for address, thread in served.items() if threads[thread].wait == WAIT]
        if len(waiting) < self._most:
            return
        found = RowWaits(self._memory, part).read(dict.fromkeys(waiting, 0))
        by_holder: defaultdict[int, dict[int, RowWait]] = defaultdict(dict)
        for address, wait in found.items():
            if wait.blocker is not None and wait.blocker in served:
                by_holder[served[wait.blocker]][served[address]] = wait
        if by_holder:
            self._most = len(waiting)
            locks = [_held(threads[holder], waits) for holder, waits in by_holder.items()]
            self.locks = tuple(sorted(locks, key=lambda lock: -lock.waiting))


def _held(holder: Thread, waits: Mapping[int, RowWait]) -> HeldLock:
    """Return a record of the lock for which these threads wait, which ``holder`` holds."""
    place = next((wait.name for wait in waits.values() if wait.name), None)
    return HeldLock(
        kind=_KIND,
        name=f"a row lock of {place}" if place else "a lock of InnoDB",
        address=0,
        owner=holder.ns_tid,
        waiters=tuple(sorted(waits)),
        waiting=len(waits),
        wait=WAIT,
        owners=1,
        owner_wait=holder.wait,
        stack=tuple([frame.label for frame in holder.frames]),
    )
