"""Store the last hour of a server's snapshots in bounded memory, as thread counts per stack."""

from __future__ import annotations

import threading
import time
from array import array
from collections import Counter, deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from innoscope.sampling.fold import Report
from innoscope.sampling.model import Frame, Trust

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from innoscope.target.model import Target

SPAN_S: Final = 3600.0
CHUNK_S: Final = 10.0
#: Maximum number of distinct stacks stored for the whole hour. If each is in all 360 chunks, that takes 6 MB.
MAX_STACKS: Final = 2_000
#: Share of MAX_STACKS that remains after the rarest stacks are dropped: low enough that dropping is rare.
_REMAINING: Final = 3 / 4
#: The stack under which threads with a dropped stack are counted, so that totals stay correct.
_RARE: Final = (Frame("[rare stacks]", "", 0),)


@dataclass(frozen=True, slots=True)
class Stack:
    """A stack with its wait class. ``labels`` is innermost first. Equality ignores ``frames``."""

    wait: str
    trust: Trust
    labels: tuple[str, ...]
    frames: tuple[Frame, ...] = field(compare=False)

    @classmethod
    def of(cls, wait: str, trust: Trust, frames: tuple[Frame, ...]) -> Stack:
        """Return the stack with the labels of ``frames``."""
        return cls(wait, trust, tuple([frame.label for frame in frames]), frames)


def rare_stack(wait: str, trust: Trust = Trust.EXACT) -> Stack:
    """Return the stack under which rare stacks of a wait class are counted."""
    return Stack.of(wait, trust, _RARE)


@dataclass(frozen=True, slots=True)
class Chunk:
    """The sum of several snapshots: ``counts`` is the number of threads per stack over all snapshots.

    ``start`` and ``end`` are the Unix times of the first and the last snapshot, ``snapshots`` is their
    number, and ``snapshot_ms`` the total time to take them. ``dropped`` is the number of stacks that were
    merged into ``[rare stacks]``.
    """

    start: float
    end: float
    snapshots: int
    snapshot_ms: float
    counts: Mapping[Stack, int]
    dropped: int = 0


@dataclass(slots=True)
class _Sealed:
    """A finished chunk, with 8 bytes per stack. ``number`` always increases, even across restarts."""

    number: int
    start: float
    end: float
    snapshots: int
    snapshot_ms: float
    dropped: int
    ids: array[int]
    counts: array[int]

    def pairs(self) -> Iterable[tuple[int, int]]:
        return zip(self.ids, self.counts, strict=True)

    def replace(self, counts: Mapping[int, int]) -> None:
        self.ids, self.counts = array("I", counts.keys()), array("I", counts.values())


class ProfileHistory:
    """A ring of the chunks of the last ``span_s`` seconds. Thread-safe."""

    def __init__(
        self, *, span_s: float = SPAN_S, chunk_s: float = CHUNK_S, most_stacks: int = MAX_STACKS
    ) -> None:
        self._span_s, self._chunk_s, self._most = span_s, chunk_s, most_stacks
        self._lock = threading.RLock()
        self._ids: dict[Stack, int] = {}
        self._stacks: dict[int, Stack] = {}
        self._totals: Counter[int] = Counter()  # threads per stack, in all chunks
        self._next_id = 0
        self._sealed: deque[_Sealed] = deque()
        self._number = 0
        self._open: _Open | None = None

    def add(self, taken_at: float, counts: Mapping[Stack, int], snapshot_ms: float = 0.0) -> None:
        """Add one snapshot; ``taken_at`` is Unix time."""
        with self._lock:
            slot = int(taken_at // self._chunk_s)
            if self._open is not None and self._open.slot != slot:
                self._seal(self._open)
            if self._open is None or self._open.slot != slot:
                self._open = _Open(slot, taken_at)
            self._open.add(taken_at, self._counted(counts), snapshot_ms)
            if len(self._stacks) > self._most:
                self._drop_rarest()

    def add_chunk(self, chunk: Chunk) -> None:
        """Add a chunk from another history. The agent uses this method to copy the sensor's chunks."""
        with self._lock:
            counts = self._counted(chunk.counts)
            self._append(chunk.start, chunk.end, chunk.snapshots, chunk.snapshot_ms, chunk.dropped, counts)
            if len(self._stacks) > self._most:
                self._drop_rarest()

    def between(self, start: float, end: float) -> Chunk:
        """Return the sum of the chunks that overlap the period, including the unfinished chunk."""
        counts: Counter[int] = Counter()
        with self._lock:
            stored: list[_Sealed | _Open] = [*self._sealed, *([self._open] if self._open else [])]
            chunks = [chunk for chunk in stored if chunk.end >= start and chunk.start <= end]
            for chunk in chunks:
                for number, count in chunk.pairs():
                    counts[number] += count
            stacks = {self._stacks[number]: count for number, count in counts.items()}
            return Chunk(
                min((chunk.start for chunk in chunks), default=0.0),
                max((chunk.end for chunk in chunks), default=0.0),
                sum(chunk.snapshots for chunk in chunks),
                sum(chunk.snapshot_ms for chunk in chunks),
                stacks,
                sum(chunk.dropped for chunk in chunks),
            )

    def since(self, cursor: int, most: int = 60) -> tuple[int, list[Chunk]]:
        """Return ``(new cursor, chunks finished since cursor, oldest first)``. Cursor 0 means all chunks.

        At most ``most`` chunks are returned; call again until none are left.
        Cursors stay valid across restarts.
        """
        with self._lock:
            found = [sealed for sealed in self._sealed if sealed.number > cursor][:most]
            return (found[-1].number if found else cursor), [self._chunk(sealed) for sealed in found]

    def _counted(self, counts: Mapping[Stack, int]) -> dict[int, int]:
        """Return ``{number of the stack: threads}``, and add the threads to the totals."""
        found = {self._id(stack): count for stack, count in counts.items() if count}
        self._totals.update(found)
        return found

    def _id(self, stack: Stack) -> int:
        known = self._ids.get(stack)
        if known is None:
            self._next_id += 1
            known = self._ids[stack] = self._next_id
            self._stacks[known] = stack
        return known

    def _seal(self, chunk: _Open) -> None:
        self._append(chunk.start, chunk.end, chunk.snapshots, chunk.snapshot_ms, chunk.dropped, chunk.counts)
        self._open = None

    def _append(
        self,
        start: float,
        end: float,
        snapshots: int,
        snapshot_ms: float,
        dropped: int,
        counts: Mapping[int, int],
    ) -> None:
        """Append a chunk. Remove expired chunks, and the stacks that no other chunk contains."""
        self._number = max(self._number + 1, time.time_ns())
        sealed = _Sealed(self._number, start, end, snapshots, snapshot_ms, dropped, array("I"), array("I"))
        sealed.replace(counts)
        self._sealed.append(sealed)
        while self._sealed[0].end < end - self._span_s:
            self._remove(self._sealed.popleft())

    def _remove(self, chunk: _Sealed) -> None:
        """Subtract the chunk from the totals, and remove stacks that only this chunk contains."""
        for number, count in chunk.pairs():
            self._totals[number] -= count
            if not self._totals[number]:
                self._remove_stack(number)

    def _remove_stack(self, number: int) -> None:
        del self._ids[self._stacks.pop(number)], self._totals[number]

    def _drop_rarest(self) -> None:
        """Replace the rarest stacks in all chunks with the ``[rare stacks]`` of their wait class."""
        rare = {number for number, _ in self._totals.most_common()[int(self._most * _REMAINING) :]}
        rare -= {number for number in rare if self._stacks[number].frames == _RARE}
        replacements = {
            number: self._id(rare_stack(self._stacks[number].wait, self._stacks[number].trust))
            for number in rare
        }
        for sealed in self._sealed:
            if not rare.isdisjoint(sealed.ids):
                counts = Counter(dict(sealed.pairs()))
                sealed.dropped += _replace(counts, replacements)
                sealed.replace(counts)
        if self._open is not None:
            self._open.dropped += _replace(self._open.counts, replacements)
        for number, other in replacements.items():
            self._totals[other] += self._totals[number]
            self._remove_stack(number)

    def _chunk(self, sealed: _Sealed) -> Chunk:
        counts = {self._stacks[number]: count for number, count in sealed.pairs()}
        return Chunk(sealed.start, sealed.end, sealed.snapshots, sealed.snapshot_ms, counts, sealed.dropped)


class _Open:
    """The unfinished chunk, to which snapshots are added."""

    def __init__(self, slot: int, start: float) -> None:
        self.slot = slot
        self.start = self.end = start
        self.snapshots = self.dropped = 0
        self.snapshot_ms = 0.0
        self.counts: Counter[int] = Counter()

    def add(self, taken_at: float, counts: Mapping[int, int], snapshot_ms: float) -> None:
        self.end = taken_at
        self.snapshots += 1
        self.snapshot_ms += snapshot_ms
        self.counts.update(counts)

    def pairs(self) -> Iterable[tuple[int, int]]:
        return self.counts.items()


def _replace(counts: Counter[int], replacements: Mapping[int, int]) -> int:
    """Move the counts of stacks to their replacements. Return the number of replaced stacks."""
    present = replacements.keys() & counts.keys()
    for number in present:
        counts[replacements[number]] += counts.pop(number)
    return len(present)


def merged(chunks: list[Chunk]) -> Chunk:
    """Return the sum of the chunks; an empty chunk if there are none."""
    counts: Counter[Stack] = Counter()
    for chunk in chunks:
        counts.update(chunk.counts)
    return Chunk(
        min((chunk.start for chunk in chunks), default=0.0),
        max((chunk.end for chunk in chunks), default=0.0),
        sum(chunk.snapshots for chunk in chunks),
        sum(chunk.snapshot_ms for chunk in chunks),
        counts,
        sum(chunk.dropped for chunk in chunks),
    )


def report(target: Target, chunk: Chunk) -> Report:
    """Return a report for the renderers of ``innoscope stacks``. It cannot be grouped by thread."""
    result = Report(target)
    result.snapshots, result.method = chunk.snapshots, "bpf"
    result.started_at, result.ended_at = chunk.start, chunk.end
    result.durations_ms = [chunk.snapshot_ms / chunk.snapshots] if chunk.snapshots else []
    for stack, count in chunk.counts.items():
        result.count(stack.wait, stack.trust, stack.labels, stack.frames, count)
    if chunk.dropped:
        note = f"{chunk.dropped:,} rare stacks are counted as [rare stacks], to stay within memory"
        result.notes[note] = None
    return result
