"""A queue of profiles to send, with bounded memory: the oldest are dropped first."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Final

#: Estimated memory of an entry in addition to its profile, in bytes: object, strings and queue slot.
_OVERHEAD: Final = 512


@dataclass(frozen=True, slots=True)
class QueuedProfile:
    """One profile of one server. ``start`` and ``end`` are Unix times of its first and last snapshot."""

    server: str
    flavour: str
    version: str
    start: float
    end: float
    snapshots: int
    pprof: bytes  # gzipped

    @property
    def size(self) -> int:
        """Return the memory that the entry occupies, in bytes."""
        return len(self.pprof) + _OVERHEAD


class ProfileQueue:
    """A first-in, first-out queue. Only one thread may use it; others may read ``bytes`` and ``dropped``."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._entries: deque[QueuedProfile] = deque()
        self.bytes = 0
        self.dropped = 0

    def __len__(self) -> int:
        return len(self._entries)

    def put(self, entry: QueuedProfile) -> None:
        """Add an entry, and drop the oldest ones while the memory limit is exceeded."""
        self._entries.append(entry)
        self.bytes += entry.size
        while self.bytes > self._max_bytes:
            self.take()
            self.dropped += 1

    @property
    def oldest(self) -> QueuedProfile | None:
        """Return the next entry to send, which stays in the queue; None if the queue is empty."""
        return self._entries[0] if self._entries else None

    def take(self) -> QueuedProfile:
        """Remove and return the oldest entry."""
        entry = self._entries.popleft()
        self.bytes -= entry.size
        return entry
