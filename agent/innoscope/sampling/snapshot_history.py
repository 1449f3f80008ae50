"""Store individual snapshots, so that any period can be extracted, without I/O and without a clock."""

from __future__ import annotations

import threading
from array import array
from collections import Counter, deque
from collections.abc import Mapping  # noqa: TC003 - msgspec evaluates the annotations
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from innoscope.sampling.activities import activities_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from innoscope.sampling.profile_history import ClassifiedStack

#: Kind of the threads that serve clients (``threads.yaml``).
CLIENT: Final = "connection"
#: Kind of the replication threads.
APPLIER: Final = "replication"
#: The kind (threads.yaml), wait class and functions of threads with the same stack.
Key = tuple[str, str, tuple[str, ...]]

#: Maximum number of distinct stacks returned for one period. Each takes a few kilobytes in an incident file.
MAX_STACKS: Final = 2_000
#: Maximum number of distinct stacks stored for all snapshots. Beyond it, only wait classes are counted.
_MAX_STORED_STACKS: Final = 8_000
#: Maximum number of frames in the stored stacks. Only runaway recursion exceeds it.
_MAX_STORED_FRAMES: Final = 500_000
#: Maximum number of frames in the histories of all servers, if their number is passed to ``share``.
_TOTAL_FRAMES: Final = 4_000_000
#: Maximum number of thread ids stored per stack.
TIDS_KEPT: Final = 50


@dataclass(frozen=True, slots=True)
class ObservedStack:
    """Threads with the same stack: their kind (threads.yaml), wait class and functions, innermost first.

    ``count`` is the sum over all snapshots; ``tids`` lists up to TIDS_KEPT of the threads in the last one.
    """

    kind: str
    wait: str
    functions: tuple[str, ...]
    count: int
    tids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class SnapshotSummary:
    """One snapshot, taken at Unix time ``at``: the number of threads of each ``(kind, wait class)``.

    ``running`` contains the ids of the client threads on a CPU; ``doing`` contains thread ids by activity
    (activities.yaml). Each has at most TIDS_KEPT ids.
    """

    at: float
    threads: Mapping[tuple[str, str], int]
    running: tuple[int, ...] = ()
    doing: Mapping[str, tuple[int, ...]] = field(default_factory=dict)


class _Entry(NamedTuple):
    """A snapshot: the numbers of its stacks, and in the same order the thread counts and thread ids."""

    summary: SnapshotSummary
    stacks: array[int]
    counts: array[int]
    tids: array[int]


class SnapshotHistory:
    """The snapshots of the last ``span_s`` seconds, or all of them. Thread-safe."""

    def __init__(self, span_s: float | None = None) -> None:
        self._span_s = span_s
        self._lock = threading.Lock()
        self._entries: deque[_Entry] = deque()
        self._numbers: dict[Key, int] = {}
        self._keys: dict[int, Key] = {}
        self._used: Counter[int] = Counter()  # number of snapshots that contain a stack
        self._next = 0
        self._frames = 0  # in all distinct stacks
        self._most_frames = _MAX_STORED_FRAMES

    def share(self, servers: int) -> None:
        """Reduce the limit if there are so many servers that all histories together could be too large.

        Stacks that are already stored expire with their snapshots.
        """
        with self._lock:
            self._most_frames = min(_MAX_STORED_FRAMES, _TOTAL_FRAMES // servers)

    def add(self, summary: SnapshotSummary, threads: Mapping[Key, Sequence[int]]) -> None:
        """Add a snapshot; ``threads`` maps each stack to its thread ids. Times must not decrease."""
        with self._lock:
            stored = [(self._number(key), tids) for key, tids in threads.items() if self._has_room(key)]
            stacks = array("I", (number for number, _ in stored))
            counts = array("I", (len(tids) for _, tids in stored))
            ids = array("i", (tid for _, tids in stored for tid in tids[:TIDS_KEPT]))
            self._used.update(stacks)
            self._entries.append(_Entry(summary, stacks, counts, ids))
            while self._span_s is not None and self._entries[0].summary.at < summary.at - self._span_s:
                self._remove(self._entries.popleft())

    def add_groups(
        self, taken_at: float, groups: Sequence[tuple[str, ClassifiedStack, Sequence[int]]]
    ) -> None:
        """Add a snapshot from the ``waits`` collector: ``(kind, stack, thread ids)`` of each group."""
        counts: Counter[tuple[str, str]] = Counter()
        threads: dict[Key, list[int]] = {}
        running: list[int] = []
        for kind, stack, tids in groups:
            counts[kind, stack.wait] += len(tids)
            threads.setdefault((kind, stack.wait, stack.labels), []).extend(tids)
            if kind == CLIENT and stack.wait == "on_cpu":
                running += tids
        self.add(SnapshotSummary(taken_at, counts, tuple(running[:TIDS_KEPT]), doing(threads)), threads)

    def since(self, at: float) -> tuple[SnapshotSummary, ...]:
        """Return the snapshots taken after the Unix time ``at``, in chronological order."""
        with self._lock:
            return tuple(entry.summary for entry in self._entries if entry.summary.at > at)

    def between(
        self, begin: float, end: float
    ) -> tuple[tuple[SnapshotSummary, ...], tuple[ObservedStack, ...]]:
        """Return the snapshots of a period, both ends included, and their MAX_STACKS most frequent stacks."""
        with self._lock:
            entries = [entry for entry in self._entries if begin <= entry.summary.at <= end]
            counts: Counter[int] = Counter()
            for entry in entries:
                counts.update(dict(zip(entry.stacks, entry.counts, strict=True)))
            last = _ids(entries[-1]) if entries else {}
            stacks = tuple(
                ObservedStack(*self._keys[number], count, last.get(number, ()))
                for number, count in counts.most_common(MAX_STACKS)
            )
            return tuple(entry.summary for entry in entries), stacks

    @property
    def used_bytes(self) -> int:
        """Return the estimated size in bytes. Function names are shared and therefore not included."""
        with self._lock:
            snapshots = sum(
                sum(len(part) * part.itemsize for part in entry[1:]) + 150 * len(entry.summary.threads) + 400
                for entry in self._entries
            )
            return snapshots + sum(300 + 8 * len(functions) for _, _, functions in self._numbers)

    def _has_room(self, key: Key) -> bool:
        if key in self._numbers:
            return True
        return len(self._numbers) < _MAX_STORED_STACKS and self._frames + len(key[2]) <= self._most_frames

    def _number(self, key: Key) -> int:
        number = self._numbers.get(key)
        if number is None:
            self._next += 1
            number = self._numbers[key] = self._next
            self._keys[number] = key
            self._frames += len(key[2])
        return number

    def _remove(self, entry: _Entry) -> None:
        """Remove the stacks that only this entry contains."""
        for number in entry.stacks:
            self._used[number] -= 1
            if not self._used[number]:
                key = self._keys.pop(number)
                self._frames -= len(key[2])
                del self._numbers[key], self._used[number]


def doing(threads: Mapping[Key, Sequence[int]]) -> dict[str, tuple[int, ...]]:
    """Return up to TIDS_KEPT thread ids for each activity. ``threads`` maps stacks to thread ids."""
    found: dict[str, tuple[int, ...]] = {}
    for (kind, _, functions), tids in threads.items():
        for activity in activities_of(kind, functions):
            found[activity] = (*found.get(activity, ()), *tids)[:TIDS_KEPT]
    return found


def _ids(entry: _Entry) -> dict[int, tuple[int, ...]]:
    """Return the thread ids of each stack of a snapshot."""
    found, start = {}, 0
    for number, count in zip(entry.stacks, entry.counts, strict=True):
        end = start + min(count, TIDS_KEPT)
        found[number] = tuple(entry.tids[start:end])
        start = end
    return found
