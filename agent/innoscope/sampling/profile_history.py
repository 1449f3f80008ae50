"""Store a server's recent snapshots, by default of an hour, in bounded memory, as thread counts per stack."""

from __future__ import annotations

import threading
import time
from array import array
from collections import Counter, deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from innoscope.sampling.fold import StackReport
from innoscope.sampling.model import Frame, Trust

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from innoscope.target.model import Target

SPAN_S: Final = 3600.0
CHUNK_S: Final = 10.0
#: Maximum number of distinct stacks. If each is in all 360 chunks of an hour, that takes 6 MB.
MAX_STACKS: Final = 2_000
#: Maximum size of all distinct stacks and their functions in bytes, as estimated by ``_size`` and
#: ``_function_size``: 2,000 stacks with 50 frames and 10,000 functions take 5 MB. Only runaway recursion and
#: very long names exceed it.
MAX_BYTES: Final = 10_000_000
#: Maxima for the histories of all servers together, if their number is passed to ``share``.
_TOTAL_STACKS: Final = 32_000
_TOTAL_BYTES: Final = 80_000_000
#: Number of functions that may be stored in addition to twice those of the stored stacks.
_SPARE_FUNCTIONS: Final = 500
#: Size of a frame of a stack in bytes: a pointer in ``frames``, and one in ``labels``.
_FRAME_BYTES: Final = 16
#: Size of a distinct function without its name, in bytes: a frame, its label, and an entry in a dictionary.
_FUNCTION_BYTES: Final = 300
#: Share of each limit that remains after the rarest stacks are dropped: low enough that dropping is rare.
_REMAINING: Final = 3 / 4
#: The stack under which threads with a dropped stack are counted, so that totals stay correct.
_RARE: Final = (Frame("[rare stacks]", "", 0),)


@dataclass(frozen=True, slots=True)
class ClassifiedStack:
    """A stack with its wait class. ``labels`` is innermost first. Equality ignores ``frames``."""

    wait: str
    trust: Trust
    labels: tuple[str, ...]
    frames: tuple[Frame, ...] = field(compare=False)

    @classmethod
    def of(cls, wait: str, trust: Trust, frames: tuple[Frame, ...]) -> ClassifiedStack:
        """Return the stack with the labels of ``frames``."""
        return cls(wait, trust, tuple([frame.label for frame in frames]), frames)


def rare_stack(wait: str, trust: Trust = Trust.EXACT) -> ClassifiedStack:
    """Return the stack under which rare stacks of a wait class are counted."""
    return ClassifiedStack.of(wait, trust, _RARE)


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
    counts: Mapping[ClassifiedStack, int]
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
        self._span_s, self._chunk_s = span_s, chunk_s
        self._most_alone = self._most = most_stacks
        self._most_bytes = MAX_BYTES
        self._lock = threading.RLock()
        self._ids: dict[ClassifiedStack, int] = {}
        self._stacks: dict[int, ClassifiedStack] = {}
        self._totals: Counter[int] = Counter()  # threads per stack, in all chunks
        self._next_id = 0
        self._functions: dict[tuple[str, str], Frame] = {}  # by label and module
        self._most_functions = _SPARE_FUNCTIONS
        self._bytes = 0  # of all distinct stacks and functions
        self._sealed: deque[_Sealed] = deque()
        self._number = 0
        self._open: _Open | None = None

    def share(self, servers: int) -> None:
        """Reduce the limits if there are so many servers that all histories together could be too large."""
        with self._lock:
            self._most = min(self._most_alone, _TOTAL_STACKS // servers)
            self._most_bytes = min(MAX_BYTES, _TOTAL_BYTES // servers)
            self._drop_rarest()

    def add(self, taken_at: float, counts: Mapping[ClassifiedStack, int], snapshot_ms: float = 0.0) -> None:
        """Add one snapshot; ``taken_at`` is Unix time."""
        with self._lock:
            slot = int(taken_at // self._chunk_s)
            if self._open is not None and self._open.slot != slot:
                self._seal(self._open)
            if self._open is None or self._open.slot != slot:
                self._open = _Open(slot, taken_at)
            self._open.add(taken_at, self._counted(counts), snapshot_ms)
            self._drop_rarest()

    def add_chunk(self, chunk: Chunk) -> None:
        """Add a chunk from another history. The agent uses this method to copy the sensor's chunks."""
        with self._lock:
            counts = self._counted(chunk.counts)
            self._append(chunk.start, chunk.end, chunk.snapshots, chunk.snapshot_ms, chunk.dropped, counts)
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

    def _counted(self, counts: Mapping[ClassifiedStack, int]) -> dict[int, int]:
        """Return ``{number of the stack: threads}``, and add the threads to the totals."""
        found = {self._id(stack): count for stack, count in counts.items() if count}
        self._totals.update(found)
        return found

    def _id(self, stack: ClassifiedStack) -> int:
        known = self._ids.get(stack)
        if known is None:
            self._next_id += 1
            stored = self._sharing_frames(stack)
            known = self._ids[stored] = self._next_id
            self._stacks[known] = stored
            self._bytes += _size(stored)
        return known

    def _sharing_frames(self, stack: ClassifiedStack) -> ClassifiedStack:
        """Return the stack with the frames that all stacks share: for each function, the first that was seen.

        Otherwise, each place from which a function calls another one would take memory.
        """
        shared = []
        for frame in stack.frames:
            key = frame.label, frame.module
            known = self._functions.get(key)
            if known is None:
                known = self._functions[key] = frame
                self._bytes += _function_size(key)
            shared.append(known)
        if not shared:
            return stack
        return ClassifiedStack.of(stack.wait, stack.trust, tuple(shared))

    def _forget_unused_functions(self) -> None:
        stacks = self._stacks.values()
        self._functions = {(one.label, one.module): one for stack in stacks for one in stack.frames}
        self._bytes = sum(map(_size, stacks)) + sum(map(_function_size, self._functions))
        self._most_functions = 2 * len(self._functions) + _SPARE_FUNCTIONS

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
        if len(self._functions) > self._most_functions:
            self._forget_unused_functions()

    def _remove(self, chunk: _Sealed) -> None:
        """Subtract the chunk from the totals, and remove stacks that only this chunk contains."""
        for number, count in chunk.pairs():
            self._totals[number] -= count
            if not self._totals[number]:
                self._remove_stack(number)

    def _remove_stack(self, number: int) -> None:
        stack = self._stacks.pop(number)
        self._bytes -= _size(stack)
        del self._ids[stack], self._totals[number]

    def _rarest(self) -> set[int]:
        """Return the rarest stacks, whose removal brings the rest within ``_REMAINING`` of the limits."""
        rare = set()
        stacks, size = int(self._most * _REMAINING), int(self._most_bytes * _REMAINING)
        functions: set[tuple[str, str]] = set()
        for number, _ in self._totals.most_common():
            stack = self._stacks[number]
            if stacks >= 0 and size >= 0:
                new = {(one.label, one.module) for one in stack.frames} - functions
                functions |= new
                stacks, size = stacks - 1, size - _size(stack) - sum(map(_function_size, new))
            if (stacks < 0 or size < 0) and stack.frames != _RARE:
                rare.add(number)
        return rare

    def _drop_rarest(self) -> None:
        """Replace the rarest stacks with the ``[rare stacks]`` of their wait class if a limit is exceeded."""
        if self._bytes > self._most_bytes:
            self._forget_unused_functions()
        if len(self._stacks) <= self._most and self._bytes <= self._most_bytes:
            return
        rare = self._rarest()
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


def _size(stack: ClassifiedStack) -> int:
    """Return the estimated size of a stack in bytes, without its functions."""
    return _FRAME_BYTES * len(stack.labels)


def _function_size(key: tuple[str, str]) -> int:
    """Return the estimated size in bytes of a function with this label and module."""
    return _FUNCTION_BYTES + sum(map(len, key))


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
    counts: Counter[ClassifiedStack] = Counter()
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


def report(target: Target, chunk: Chunk) -> StackReport:
    """Return a report for the renderers of ``innoscope stacks``. It cannot be grouped by thread."""
    result = StackReport(target)
    result.snapshots, result.method = chunk.snapshots, "bpf"
    result.started_at, result.ended_at = chunk.start, chunk.end
    result.durations_ms = [chunk.snapshot_ms / chunk.snapshots] if chunk.snapshots else []
    for stack, count in chunk.counts.items():
        result.count(stack.wait, stack.trust, stack.labels, stack.frames, count)
    if chunk.dropped:
        note = f"{chunk.dropped:,} rare stacks are counted as [rare stacks], to stay within memory"
        result.notes[note] = None
    return result
