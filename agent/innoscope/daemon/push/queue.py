"""A queue of requests to send, with bounded memory: the oldest are dropped first."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Final, Generic, Protocol, TypeVar

#: Estimated memory of an entry in addition to its body, in bytes: object, strings and queue slot.
OVERHEAD: Final = 512


class Sized(Protocol):
    """An entry of a queue."""

    @property
    def size(self) -> int:
        """Return the memory that the entry occupies, in bytes."""


Queued = TypeVar("Queued", bound=Sized)


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
        return len(self.pprof) + OVERHEAD


class BoundedQueue(Generic[Queued]):
    """A first-in, first-out queue. Only one thread may use it; others may read ``bytes``."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._entries: deque[Queued] = deque()
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    def put(self, entry: Queued) -> list[Queued]:
        """Add an entry. Drop and return the oldest entries while the memory limit is exceeded."""
        self._entries.append(entry)
        self.bytes += entry.size
        dropped = []
        while self.bytes > self._max_bytes:
            dropped.append(self.take())
        return dropped

    @property
    def oldest(self) -> Queued | None:
        """Return the next entry to send, which stays in the queue; None if the queue is empty."""
        return self._entries[0] if self._entries else None

    def take(self) -> Queued:
        """Remove and return the oldest entry."""
        entry = self._entries.popleft()
        self.bytes -= entry.size
        return entry
