"""Find the connections that block others with row locks, in the snapshot in which the most threads waited."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from innoscope.memory.locks.rows import RowWaits

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from innoscope.memory.locks.layout import LayoutPart, ProcessMemory
    from innoscope.memory.locks.sessions import ServerSession
    from innoscope.sampling.model import Thread

#: Wait class of the waiting threads.
WAIT: Final = "row_lock"
#: Maximum number of waiters to read.
_MAX_WAITERS: Final = 1_000


@dataclass(frozen=True, slots=True)
class BlockedRow:
    """A connection that is waiting for a row lock, and the connection that blocks it.

    ``lock`` is a description such as ``index d.t.PRIMARY``, or None for table locks.
    """

    waiter: int
    blocker: int
    lock: str | None


class BlockedRows:
    """The row lock waits of one snapshot, at most 1,000. Not thread-safe.

    Waits of different snapshots are not combined: two connections may have waited for each other at different
    times, which would look like a cycle.
    """

    def __init__(self, memory: ProcessMemory) -> None:
        self._memory = memory
        self._most = 1
        self.waits: tuple[BlockedRow, ...] = ()

    def note(
        self, part: LayoutPart, sessions: Sequence[ServerSession], threads: Mapping[int, Thread]
    ) -> None:
        """Read the waits for this snapshot, unless more threads waited in an earlier one.

        ``sessions`` contains the connections that ``threads`` are serving. Raise OSError or NativeError if
        the server's memory cannot be read.
        """
        waiting = [one.address for one in sessions if threads[one.thread].wait == WAIT]
        if len(waiting) < self._most:
            return
        found = RowWaits(self._memory, part).read(dict.fromkeys(waiting[:_MAX_WAITERS], 0))
        connections = {one.address: one.connection for one in sessions}
        waits = tuple(
            BlockedRow(connections[thd], connections[wait.blocker], wait.name)
            for thd, wait in found.items()
            if wait.blocker is not None and wait.blocker in connections
        )
        if waits:
            self._most, self.waits = len(waiting), waits
