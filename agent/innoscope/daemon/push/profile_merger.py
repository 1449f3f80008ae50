"""Collect the snapshots of each server until they are merged into one profile per interval."""

from __future__ import annotations

import random
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from innoscope.sampling.profile_history import Chunk
    from innoscope.target.model import Target

#: Maximum number of one server's chunks waiting to be merged. The sensor sends up to 60 at once.
_MAX_CHUNKS: Final = 400
#: Maximum number of intervals that a profile covers.
_MAX_INTERVALS: Final = 1.5

#: A chunk, and the target of its server when the chunk was recorded.
TargetChunk = tuple["Target", "Chunk"]


class ServerChunks(NamedTuple):
    """Chunks of one server that are to be merged into one profile."""

    server: str
    target: Target
    chunks: list[Chunk]


@dataclass(slots=True)
class _Pending:
    """Chunks of one server to be merged into a profile, and the monotonic time when the profile is due."""

    due: float
    chunks: list[TargetChunk] = field(default_factory=list)


class ProfileMerger:
    """Collects the chunks of each server. Thread-safe. ``clock`` is monotonic.

    Chunks that ended before this agent started are ignored, because a previous agent may have sent them.
    """

    def __init__(
        self,
        interval_s: float,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        jitter: Callable[[float, float], float] = random.uniform,
    ) -> None:
        self._interval_s = interval_s
        self._clock, self._jitter = clock, jitter
        self._since = wall()
        self._lock = threading.Lock()
        self._pending: dict[str, _Pending] = {}

    def take(self, server: str, target: Target, chunks: Iterable[Chunk]) -> int:
        """Add new chunks of a server. Return the number of chunks that were dropped because too many wait."""
        new = [chunk for chunk in chunks if chunk.end >= self._since]
        if not new:
            return 0
        with self._lock:
            pending = self._pending.get(server)
            if pending is None:
                # jitter, so that agents started at the same time do not push at the same time
                due = self._clock() + self._interval_s * self._jitter(0.5, 1.0)
                pending = self._pending[server] = _Pending(due)
            pending.chunks += [(target, chunk) for chunk in new]
            dropped = len(pending.chunks[:-_MAX_CHUNKS])
            del pending.chunks[:-_MAX_CHUNKS]
            return dropped

    def due(self, now: float, *, force: bool = False) -> list[ServerChunks]:
        """Remove and return the chunks that are due at ``now``, or all chunks if ``force`` is true."""
        with self._lock:
            ready = [
                (name, pending.chunks)
                for name, pending in self._pending.items()
                if force or pending.due <= now
            ]
            for name, new_chunks in ready:
                pending = self._pending[name]
                pending.due, pending.chunks = now + self._interval_s, []
                if not new_chunks:
                    del self._pending[name]  # the server exited, or the sensor does not report it
        return [
            ServerChunks(name, target, chunks)
            for name, new_chunks in ready
            for target, chunks in _split(new_chunks, _MAX_INTERVALS * self._interval_s)
        ]

    def times(self) -> list[float]:
        """Return the monotonic times at which the servers' profiles are due."""
        with self._lock:
            return [pending.due for pending in self._pending.values()]


def _split(new_chunks: list[TargetChunk], max_s: float) -> Iterator[tuple[Target, list[Chunk]]]:
    """Split chunks into groups that cover at most ``max_s`` seconds and a single server version."""
    chunks: list[Chunk] = []
    before: Target | None = None
    for target, chunk in new_chunks:
        if before is not None and (
            chunk.end - chunks[0].start > max_s
            or (before.flavour, before.version_text) != (target.flavour, target.version_text)
        ):
            yield before, chunks
            chunks = []
        before = target
        chunks.append(chunk)
    if before is not None:
        yield before, chunks
