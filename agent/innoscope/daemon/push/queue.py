"""Profiles that wait to be sent: in order, in bounded memory, the oldest dropped first."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Final

#: What an entry takes besides its bytes: itself, its strings, its place.
_OVERHEAD: Final = 512


@dataclass(frozen=True, slots=True)
class Entry:
    """One profile of one server. ``start`` and ``end`` are Unix times of its first and last look."""

    server: str
    flavour: str
    version: str
    start: float
    end: float
    looks: int
    pprof: bytes  # gzipped

    @property
    def size(self) -> int:
        """Bytes of memory."""
        return len(self.pprof) + _OVERHEAD


class Queue:
    """First in, first out. Belongs to one thread; others may read ``bytes`` and ``dropped``."""

    def __init__(self, most_bytes: int) -> None:
        self._most = most_bytes
        self._entries: deque[Entry] = deque()
        self.bytes = 0
        self.dropped = 0

    def __len__(self) -> int:
        return len(self._entries)

    def put(self, entry: Entry) -> None:
        """Add it as the newest, at the cost of the oldest."""
        self._entries.append(entry)
        self.bytes += entry.size
        while self.bytes > self._most:
            self.take()
            self.dropped += 1

    @property
    def oldest(self) -> Entry | None:
        """The next to be sent; it stays."""
        return self._entries[0] if self._entries else None

    def take(self) -> Entry:
        """The oldest, which leaves."""
        entry = self._entries.popleft()
        self.bytes -= entry.size
        return entry
