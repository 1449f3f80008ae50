"""Looks at all threads, kept one by one: any stretch of time can be cut from them. No I/O, no clock."""

from __future__ import annotations

import threading
from array import array
from collections import Counter, deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from innoscope.sampling.profile_history import Stack

#: Kind of the threads that serve clients (``threads.yaml``).
CLIENT: Final = "connection"
#: ... and of those that replicate.
APPLIER: Final = "replication"
#: Kind (threads.yaml), wait class and functions of threads with one stack.
Key = tuple[str, str, tuple[str, ...]]

#: Distinct stacks that are told of one time; each is some kilobytes in an incident file.
MOST_STACKS: Final = 2_000
#: Distinct stacks that are kept of all looks: beyond it the rest of a look is counted by class only.
_STACKS_KEPT: Final = 8_000
#: Thread ids kept of one stack.
TIDS_KEPT: Final = 50


@dataclass(frozen=True, slots=True)
class Seen:
    """Threads with one stack: their kind (threads.yaml), wait class and functions, innermost first.

    ``count`` adds up the threads of all looks; ``tids`` are those of the last look.
    """

    kind: str
    wait: str
    functions: tuple[str, ...]
    count: int
    tids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Look:
    """One look at all threads: how many of each ``(kind, wait class)``, at Unix time ``at``.

    ``running`` are the clients' threads that had a CPU, by the id that the server knows.
    """

    at: float
    threads: Mapping[tuple[str, str], int]
    running: tuple[int, ...] = ()


class _Kept(NamedTuple):
    """A look; its stacks by number, how many threads had each, and their ids one stack after the other."""

    look: Look
    stacks: array[int]
    counts: array[int]
    tids: array[int]


class Looks:
    """The last ``span_s`` seconds of looks, all of them without one. Safe to use from several threads."""

    def __init__(self, span_s: float | None = None) -> None:
        self._span_s = span_s
        self._lock = threading.Lock()
        self._kept: deque[_Kept] = deque()
        self._numbers: dict[Key, int] = {}
        self._keys: dict[int, Key] = {}
        self._used: Counter[int] = Counter()  # looks that have it
        self._next = 0

    def add(self, look: Look, threads: Mapping[Key, Sequence[int]]) -> None:
        """Take in a look: the ids of the threads of each stack. Times only go on."""
        with self._lock:
            met = [(self._number(key), tids) for key, tids in threads.items() if self._has_room(key)]
            stacks = array("I", (number for number, _ in met))
            counts = array("I", (len(tids) for _, tids in met))
            known = array("i", (tid for _, tids in met for tid in tids[:TIDS_KEPT]))
            self._used.update(stacks)
            self._kept.append(_Kept(look, stacks, counts, known))
            while self._span_s is not None and self._kept[0].look.at < look.at - self._span_s:
                self._forget(self._kept.popleft())

    def took(self, taken_at: float, groups: Sequence[tuple[str, Stack, Sequence[int]]]) -> None:
        """Take in a look of the collector ``waits``."""
        counts: Counter[tuple[str, str]] = Counter()
        threads: dict[Key, list[int]] = {}
        running: list[int] = []
        for kind, stack, tids in groups:
            counts[kind, stack.wait] += len(tids)
            threads.setdefault((kind, stack.wait, stack.labels), []).extend(tids)
            if kind == CLIENT and stack.wait == "on_cpu":
                running += tids
        self.add(Look(taken_at, counts, tuple(running[:TIDS_KEPT])), threads)

    def since(self, at: float) -> tuple[Look, ...]:
        """The looks later than that, in the order of time."""
        with self._lock:
            return tuple(kept.look for kept in self._kept if kept.look.at > at)

    def between(self, begin: float, end: float) -> tuple[tuple[Look, ...], tuple[Seen, ...]]:
        """The looks of that time, both ends included, and what was seen in them, the most frequent first."""
        with self._lock:
            kept = [one for one in self._kept if begin <= one.look.at <= end]
            counts: Counter[int] = Counter()
            for one in kept:
                counts.update(dict(zip(one.stacks, one.counts, strict=True)))
            last = _ids(kept[-1]) if kept else {}
            seen = tuple(
                Seen(*self._keys[number], count, last.get(number, ()))
                for number, count in counts.most_common(MOST_STACKS)
            )
            return tuple(one.look for one in kept), seen

    @property
    def used_bytes(self) -> int:
        """About what looks and stacks occupy; functions' names are shared with who told them."""
        with self._lock:
            looks = sum(
                sum(len(part) * part.itemsize for part in kept[1:]) + 150 * len(kept.look.threads) + 400
                for kept in self._kept
            )
            return looks + sum(300 + 8 * len(functions) for _, _, functions in self._numbers)

    def _has_room(self, key: Key) -> bool:
        return key in self._numbers or len(self._numbers) < _STACKS_KEPT

    def _number(self, key: Key) -> int:
        number = self._numbers.get(key)
        if number is None:
            self._next += 1
            number = self._numbers[key] = self._next
            self._keys[number] = key
        return number

    def _forget(self, kept: _Kept) -> None:
        """Take back its stacks, and forget those that only it had."""
        for number in kept.stacks:
            self._used[number] -= 1
            if not self._used[number]:
                del self._numbers[self._keys.pop(number)], self._used[number]


def _ids(kept: _Kept) -> dict[int, tuple[int, ...]]:
    """The threads of each stack of a look."""
    found, at = {}, 0
    for number, count in zip(kept.stacks, kept.counts, strict=True):
        end = at + min(count, TIDS_KEPT)
        found[number] = tuple(kept.tids[at:end])
        at = end
    return found
