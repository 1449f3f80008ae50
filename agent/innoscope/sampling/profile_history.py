"""The last hour of looks at one server, folded: how many threads had which stack, in bounded memory."""

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
#: Distinct stacks kept over the whole hour. With each of them in each of the 360 chunks it is 6 MB.
MOST_STACKS: Final = 2_000
#: What is left of them when the rarest are dropped, so that it is not done at each look.
_LEFT: Final = 3 / 4
#: Where the threads of dropped stacks are counted, so that totals stay true.
_RARE: Final = (Frame("[rare stacks]", "", 0),)


@dataclass(frozen=True, slots=True)
class Stack:
    """A wait class and functions, innermost first. Stacks are the same if all but the ``frames`` are."""

    wait: str
    trust: Trust
    labels: tuple[str, ...]
    frames: tuple[Frame, ...] = field(compare=False)

    @classmethod
    def of(cls, wait: str, trust: Trust, frames: tuple[Frame, ...]) -> Stack:
        """The stack of a thread."""
        return cls(wait, trust, tuple([frame.label for frame in frames]), frames)


@dataclass(frozen=True, slots=True)
class Chunk:
    """Looks added up: ``counts`` are threads by stack, over all looks.

    ``start`` and ``end`` are Unix times of the first and the last look, ``look_ms`` what all took together.
    ``dropped`` are stacks that are not told apart any more.
    """

    start: float
    end: float
    looks: int
    look_ms: float
    counts: Mapping[Stack, int]
    dropped: int = 0


@dataclass(slots=True)
class _Sealed:
    """A chunk in 8 bytes a stack. ``number`` grows from chunk to chunk, over restarts too."""

    number: int
    start: float
    end: float
    looks: int
    look_ms: float
    dropped: int
    ids: array[int]
    counts: array[int]

    def pairs(self) -> Iterable[tuple[int, int]]:
        return zip(self.ids, self.counts, strict=True)

    def replace(self, counts: Mapping[int, int]) -> None:
        self.ids, self.counts = array("I", counts.keys()), array("I", counts.values())


class Profiles:
    """The ring. Safe to use from several threads."""

    def __init__(
        self, *, span_s: float = SPAN_S, chunk_s: float = CHUNK_S, most_stacks: int = MOST_STACKS
    ) -> None:
        self._span_s, self._chunk_s, self._most = span_s, chunk_s, most_stacks
        self._lock = threading.RLock()
        self._ids: dict[Stack, int] = {}
        self._stacks: dict[int, Stack] = {}
        self._totals: Counter[int] = Counter()  # threads in all chunks
        self._next_id = 0
        self._sealed: deque[_Sealed] = deque()
        self._number = 0
        self._open: _Open | None = None

    def add(self, taken_at: float, counts: Mapping[Stack, int], look_ms: float = 0.0) -> None:
        """Count the threads of one look; ``taken_at`` is Unix time."""
        with self._lock:
            slot = int(taken_at // self._chunk_s)
            if self._open is not None and self._open.slot != slot:
                self._seal(self._open)
            if self._open is None or self._open.slot != slot:
                self._open = _Open(slot, taken_at)
            self._open.add(taken_at, self._counted(counts), look_ms)
            if len(self._stacks) > self._most:
                self._drop_rarest()

    def put(self, chunk: Chunk) -> None:
        """Take over a chunk of another store: how the agent keeps what the sensor saw."""
        with self._lock:
            counts = self._counted(chunk.counts)
            self._keep(chunk.start, chunk.end, chunk.looks, chunk.look_ms, chunk.dropped, counts)
            if len(self._stacks) > self._most:
                self._drop_rarest()

    def between(self, start: float, end: float) -> Chunk:
        """All looks of the chunks that touch this time, those of the last seconds included; perhaps none."""
        counts: Counter[int] = Counter()
        with self._lock:
            kept: list[_Sealed | _Open] = [*self._sealed, *([self._open] if self._open else [])]
            chunks = [chunk for chunk in kept if chunk.end >= start and chunk.start <= end]
            for chunk in chunks:
                for number, count in chunk.pairs():
                    counts[number] += count
            stacks = {self._stacks[number]: count for number, count in counts.items()}
            return Chunk(
                min((chunk.start for chunk in chunks), default=0.0),
                max((chunk.end for chunk in chunks), default=0.0),
                sum(chunk.looks for chunk in chunks),
                sum(chunk.look_ms for chunk in chunks),
                stacks,
                sum(chunk.dropped for chunk in chunks),
            )

    def since(self, cursor: int, most: int = 60) -> tuple[int, list[Chunk]]:
        """``(new cursor, chunks)``: those completed since, the oldest first; 0 is before all.

        At most ``most`` at a time: ask again until there are none. A cursor stays good over restarts.
        """
        with self._lock:
            found = [sealed for sealed in self._sealed if sealed.number > cursor][:most]
            return (found[-1].number if found else cursor), [self._told(sealed) for sealed in found]

    def _counted(self, counts: Mapping[Stack, int]) -> dict[int, int]:
        """Threads by the number of their stack, added to the totals."""
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
        self._keep(chunk.start, chunk.end, chunk.looks, chunk.look_ms, chunk.dropped, chunk.counts)
        self._open = None

    def _keep(
        self, start: float, end: float, looks: int, look_ms: float, dropped: int, counts: Mapping[int, int]
    ) -> None:
        """Append a chunk, and forget those that are too old with the stacks that only they had."""
        self._number = max(self._number + 1, time.time_ns())
        sealed = _Sealed(self._number, start, end, looks, look_ms, dropped, array("I"), array("I"))
        sealed.replace(counts)
        self._sealed.append(sealed)
        while self._sealed[0].end < end - self._span_s:
            self._forget(self._sealed.popleft())

    def _forget(self, chunk: _Sealed) -> None:
        """Take it out of the totals, and with it the stacks that only it had."""
        for number, count in chunk.pairs():
            self._totals[number] -= count
            if not self._totals[number]:
                self._forget_stack(number)

    def _forget_stack(self, number: int) -> None:
        del self._ids[self._stacks.pop(number)], self._totals[number]

    def _drop_rarest(self) -> None:
        """Count the rarest stacks as ``[rare stacks]`` of their class, in every chunk."""
        rare = {number for number, _ in self._totals.most_common()[int(self._most * _LEFT) :]}
        rare -= {number for number in rare if self._stacks[number].frames == _RARE}
        instead = {number: self._id(self._rare(self._stacks[number])) for number in rare}
        for sealed in self._sealed:
            if not rare.isdisjoint(sealed.ids):
                counts = Counter(dict(sealed.pairs()))
                sealed.dropped += _replace(counts, instead)
                sealed.replace(counts)
        if self._open is not None:
            self._open.dropped += _replace(self._open.counts, instead)
        for number, other in instead.items():
            self._totals[other] += self._totals[number]
            self._forget_stack(number)

    @staticmethod
    def _rare(stack: Stack) -> Stack:
        return Stack.of(stack.wait, stack.trust, _RARE)

    def _told(self, sealed: _Sealed) -> Chunk:
        counts = {self._stacks[number]: count for number, count in sealed.pairs()}
        return Chunk(sealed.start, sealed.end, sealed.looks, sealed.look_ms, counts, sealed.dropped)


class _Open:
    """The chunk that looks are being added to."""

    def __init__(self, slot: int, start: float) -> None:
        self.slot = slot
        self.start = self.end = start
        self.looks = self.dropped = 0
        self.look_ms = 0.0
        self.counts: Counter[int] = Counter()

    def add(self, taken_at: float, counts: Mapping[int, int], look_ms: float) -> None:
        self.end = taken_at
        self.looks += 1
        self.look_ms += look_ms
        self.counts.update(counts)

    def pairs(self) -> Iterable[tuple[int, int]]:
        return self.counts.items()


def _replace(counts: Counter[int], instead: Mapping[int, int]) -> int:
    """Count threads of some stacks as those of others; how many stacks that were."""
    met = instead.keys() & counts.keys()
    for number in met:
        counts[instead[number]] += counts.pop(number)
    return len(met)


def merged(chunks: list[Chunk]) -> Chunk:
    """All of them as one; of none, an empty one."""
    counts: Counter[Stack] = Counter()
    for chunk in chunks:
        counts.update(chunk.counts)
    return Chunk(
        min((chunk.start for chunk in chunks), default=0.0),
        max((chunk.end for chunk in chunks), default=0.0),
        sum(chunk.looks for chunk in chunks),
        sum(chunk.look_ms for chunk in chunks),
        counts,
        sum(chunk.dropped for chunk in chunks),
    )


def report(target: Target, chunk: Chunk) -> Report:
    """What the renderers of ``innoscope stacks`` take. Threads are not told apart: no ``by="thread"``."""
    made = Report(target)
    made.looks, made.method = chunk.looks, "bpf"
    made.started_at, made.ended_at = chunk.start, chunk.end
    made.durations_ms = [chunk.look_ms / chunk.looks] if chunk.looks else []
    for stack, count in chunk.counts.items():
        made.count(stack.wait, stack.trust, stack.labels, stack.frames, count)
    if chunk.dropped:
        made.notes[f"{chunk.dropped:,} rare stacks are counted as [rare stacks], to stay within memory"] = (
            None
        )
    return made
