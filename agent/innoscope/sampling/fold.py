"""Fold threads by stack, wait class, latch or thread, over one or many snapshots."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, TypeAlias

from innoscope.sampling.latches import LATCH_WAITS, named
from innoscope.sampling.model import Snapshot, Trust

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from innoscope.sampling.model import Frame, Thread
    from innoscope.target.model import Target

#: A wait class and the labels of a stack.
Key: TypeAlias = tuple[str, tuple[str, ...]]
#: Trust levels that every format must indicate.
DOUBTFUL: Final = (Trust.INFERRED, Trust.STALE, Trust.TORN, Trust.TRUNCATED, Trust.INCOMPLETE)
#: Shown instead of a latch's name if the latch is unknown.
UNKNOWN_LATCH: Final = "an unknown latch"
#: Maximum number of distinct statements stored per stack.
MAX_QUERIES: Final = 1_000
#: Maximum number of distinct thread ids stored per stack.
MAX_TIDS: Final = 10_000


@dataclass(frozen=True, slots=True)
class SampleType:
    """The name and the unit of the counts in a profile.proto file."""

    name: str
    unit: str


@dataclass(frozen=True, slots=True)
class Unit:
    """The unit of a report's counts, and its names in profile.proto (``pprof``) and in speedscope files."""

    name: str
    pprof: SampleType
    speedscope: str = "none"
    #: For display, counts are divided by ``scale`` and shown under ``heading``.
    scale: int = 1
    heading: str = ""

    @property
    def title(self) -> str:
        """Return the heading of a column of counts."""
        return self.heading or self.name

    def show(self, count: int) -> str:
        """Return the count as it is displayed."""
        return f"{count:,}" if self.scale == 1 else f"{count / self.scale:,.1f}"


THREADS: Final = Unit("threads", SampleType("threads", "count"))


@dataclass(slots=True)
class FoldedGroup:
    """Threads with the same stack, wait class, latch or id.

    ``count`` is the sum over all snapshots, in the report's unit. ``frames`` contains the first thread's
    frames, innermost first. A group by wait class or latch has no frames; its stacks are in ``parts``. In a
    group by thread, ``thread`` is the thread's last record. ``latch`` is set only in a group by latch.
    """

    wait: str
    frames: tuple[Frame, ...] = ()
    count: int = 0
    trust: Counter[Trust] = field(default_factory=Counter)
    tids: dict[int, None] = field(default_factory=dict)
    queries: Counter[str] = field(default_factory=Counter)
    parts: list[FoldedGroup] = field(default_factory=list)
    thread: Thread | None = None
    latch: str = ""

    @property
    def marks(self) -> str:
        """Return the marks of an unreliable stack, such as ``[stale]`` or ``[2 of 5 torn]``, otherwise ""."""
        found = [(trust, number) for trust in DOUBTFUL if (number := self.trust[trust])]
        return " ".join(
            f"[{trust}]" if number == self.count else f"[{number} of {self.count} {trust}]"
            for trust, number in found
        )

    def add(self, thread: Thread, number: int = 1) -> None:
        """Add a thread. ``number`` is its count in the report's unit."""
        self.count += number
        self.trust[thread.trust] += number
        if len(self.tids) < MAX_TIDS:
            self.tids[thread.tid] = None
        text = thread.query.summary if thread.query else None
        if text and (text in self.queries or len(self.queries) < MAX_QUERIES):
            self.queries[text] += 1

    def absorb(self, other: FoldedGroup) -> None:
        """Add the counts of another group to this one."""
        self.count += other.count
        self.trust += other.trust
        self.tids |= other.tids
        self.queries += other.queries


class Fold:
    """The folded threads of snapshots. Two stacks are equal if their functions and wait classes are equal."""

    def __init__(self) -> None:
        self._stacks: dict[Key, FoldedGroup] = {}
        self._threads: dict[int, dict[Key, FoldedGroup]] = {}
        self._last: dict[int, Thread] = {}

    def add(self, snapshot: Snapshot) -> None:
        """Count all threads of one snapshot."""
        for key, threads in group_by_stack(snapshot.threads).items():
            for thread in threads:
                self._put(key, thread, 1)

    def put(self, thread: Thread, number: int) -> None:
        """Add ``number`` to the count of a thread's stack, for units other than threads."""
        self._put((thread.wait, _labels(thread.frames)), thread, number)

    def _put(self, key: Key, thread: Thread, number: int) -> None:
        _into(self._stacks, key, thread, number)
        _into(self._threads.setdefault(thread.tid, {}), key, thread, number)
        self._last[thread.tid] = thread

    def count(
        self, wait: str, trust: Trust, labels: tuple[str, ...], frames: tuple[Frame, ...], number: int
    ) -> None:
        """Count ``number`` threads with this stack. Their ids are unknown."""
        group = self._stacks.get((wait, labels))
        if group is None:
            group = self._stacks[wait, labels] = FoldedGroup(wait, frames)
        group.count += number
        group.trust[trust] += number

    def by_stack(self) -> list[FoldedGroup]:
        """Return one group per stack and wait class, largest first."""
        return most_first(self._stacks.values())

    def by_wait(self) -> list[FoldedGroup]:
        """Return one group per wait class, largest first, with its stacks in ``parts``."""
        waits: dict[str, FoldedGroup] = {}
        for group in self.by_stack():
            whole = waits.setdefault(group.wait, FoldedGroup(group.wait))
            whole.absorb(group)
            whole.parts.append(group)
        return most_first(waits.values())

    def by_latch(self) -> list[FoldedGroup]:
        """Return one group per latch with waiting threads, largest first, with its stacks in ``parts``."""
        latches: dict[str, FoldedGroup] = {}
        for group in self.by_stack():
            if group.wait in LATCH_WAITS:
                latch = named(_labels(group.frames)) or UNKNOWN_LATCH
                whole = latches.setdefault(latch, FoldedGroup(group.wait, latch=latch))
                whole.absorb(group)
                whole.parts.append(group)
        return most_first(latches.values())

    def by_thread(self) -> list[FoldedGroup]:
        """Return one group per thread, sorted by thread id, with the thread's stacks in ``parts``."""
        found = []
        for tid in sorted(self._threads):
            parts = most_first(self._threads[tid].values())
            thread = self._last[tid]
            whole = FoldedGroup(thread.wait, thread.frames, thread=thread, tids={tid: None}, parts=parts)
            for part in parts:
                whole.count += part.count
                whole.trust += part.trust
                whole.queries += part.queries
            found.append(whole)
        return found

    def groups(self, by: str) -> list[FoldedGroup]:
        """Return the groups by ``stack``, ``wait``, ``latch`` or ``thread``."""
        found = {
            "stack": self.by_stack,
            "wait": self.by_wait,
            "latch": self.by_latch,
            "thread": self.by_thread,
        }
        return found[by]()


def group_by_stack(threads: Iterable[Thread]) -> dict[Key, list[Thread]]:
    """Group threads by stack. Equal stacks share one tuple, whose labels are built only once."""
    labels: dict[int, tuple[str, ...]] = {}
    groups: defaultdict[Key, list[Thread]] = defaultdict(list)
    for thread in threads:
        known = labels.get(id(thread.frames))
        if known is None:
            known = labels[id(thread.frames)] = _labels(thread.frames)
        groups[thread.wait, known].append(thread)
    return groups


def _labels(frames: Iterable[Frame]) -> tuple[str, ...]:
    return tuple([frame.label for frame in frames])


def _into(groups: dict[Key, FoldedGroup], key: Key, thread: Thread, number: int) -> None:
    group = groups.get(key)
    if group is None:
        group = groups[key] = FoldedGroup(thread.wait, thread.frames)
    group.add(thread, number)


def most_first(groups: Iterable[FoldedGroup]) -> list[FoldedGroup]:
    """Return the groups in display order, largest first."""
    return sorted(
        groups, key=lambda group: (-group.count, group.wait, [frame.label for frame in group.frames])
    )


def fold(snapshots: Iterable[Snapshot], by: str = "stack") -> list[FoldedGroup]:
    """Return the groups of all threads of all snapshots. ``by`` is stack, wait, latch or thread."""
    total = Fold()
    for snapshot in snapshots:
        total.add(snapshot)
    return total.groups(by)


class Filter:
    """A selection of threads by wait class and by a regular expression."""

    def __init__(self, waits: Collection[str] = (), grep: str | None = None) -> None:
        self._waits = frozenset(waits)
        self._grep = re.compile(grep) if grep else None
        self._known: dict[str, bool] = {}

    def __bool__(self) -> bool:
        return bool(self._waits or self._grep)

    def keeps(self, thread: Thread) -> bool:
        """Return whether a thread has a selected wait class, and a name, statement or frame that matches."""
        if self._waits and thread.wait not in self._waits:
            return False
        if self._grep is None or self._found(thread.comm):
            return True
        if any(self._found(frame.label) for frame in thread.frames):
            return True
        text = thread.query.digest_text if thread.query else None
        return bool(text and self._grep.search(text))

    def _found(self, name: str) -> bool:
        known = self._known.get(name)
        if known is None:
            known = self._known[name] = bool(self._grep and self._grep.search(name))
        return known

    def apply(self, snapshot: Snapshot) -> Snapshot:
        """Return the snapshot with only the selected threads."""
        if not self:
            return snapshot
        return replace(snapshot, threads=tuple(filter(self.keeps, snapshot.threads)))


class StackReport:
    """A report on snapshots or a profile: totals, and the folded threads that passed the filter.

    ``headline``, if not empty, replaces the usual headline.
    """

    def __init__(self, target: Target, wanted: Filter | None = None, unit: Unit = THREADS) -> None:
        self.target = target
        self.wanted = wanted or Filter()
        self.unit = unit
        self.headline = ""
        self.fold = Fold()
        self.snapshots = 0
        self.threads = 0  # total over all snapshots before the filter, in the report's unit
        self.shown = 0  # total after the filter
        self.tally: Counter[str] = Counter()
        self.waits: Counter[str] = Counter()
        self.method = ""
        self.started_at = 0.0
        self.ended_at = 0.0
        self.durations_ms: list[float] = []
        self.notes: dict[str, None] = {}
        self.ended: str | None = None  # why the report ended early; None if it did not

    def count(
        self, wait: str, trust: Trust, labels: tuple[str, ...], frames: tuple[Frame, ...], number: int
    ) -> None:
        """Count ``number`` threads that were folded earlier, without applying the filter."""
        self.fold.count(wait, trust, labels, frames, number)
        self.threads += number
        self.shown += number
        self.tally[trust] += number
        self.waits[wait] += number

    def put(self, thread: Thread, number: int) -> None:
        """Count ``number`` units for a thread, and fold the thread if it passes the filter."""
        self.threads += number
        self.tally[thread.trust] += number
        self.waits[thread.wait] += number
        if self.wanted.keeps(thread):
            self.shown += number
            self.fold.put(thread, number)

    def add(self, snapshot: Snapshot) -> Snapshot:
        """Count one snapshot, and return the part that passed the filter."""
        kept = self.wanted.apply(snapshot)
        self.fold.add(kept)
        self.snapshots += 1
        self.threads += len(snapshot.threads)
        self.shown += len(kept.threads)
        for thread in snapshot.threads:
            self.tally[thread.trust] += 1
            self.waits[thread.wait] += 1
        self.method = snapshot.method
        self.started_at = self.started_at or snapshot.taken_at
        self.ended_at = snapshot.taken_at
        self.durations_ms.append(snapshot.duration_ms)
        self.notes |= dict.fromkeys(snapshot.notes)
        return kept
