"""The contents of one snapshot: its distinct stacks, filtered and sorted as the user chose."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import TYPE_CHECKING

from innoscope.sampling.fold import FoldedGroup, Key, group_by_stack

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Mapping

    from innoscope.sampling.model import Frame, Snapshot, Thread

#: Wait classes of idle threads.
IDLE = frozenset({"idle", "background_idle"})


class Order(StrEnum):
    """Sort orders of the stacks."""

    THREADS = "threads"
    CHANGE = "change"
    CLASS = "class"
    FUNCTION = "function"

    @property
    def next(self) -> Order:
        """Return the next sort order. The first one follows the last."""
        orders = list(Order)
        return orders[(orders.index(self) + 1) % len(orders)]


@dataclass(frozen=True, slots=True)
class Choice:
    """The user's choice of stacks to show, and of their order."""

    wait: str | None = None
    text: str = ""
    hide_idle: bool = False
    order: Order = Order.THREADS


@dataclass(frozen=True)
class StackRow:
    """A distinct stack and its threads."""

    key: Key
    frames: tuple[Frame, ...]
    threads: tuple[Thread, ...]
    change: int = 0  # change in the thread count since the previous snapshot

    @property
    def wait(self) -> str:
        """Return the id of the stack's wait class."""
        return self.key[0]

    @property
    def count(self) -> int:
        """Return the number of threads with this stack."""
        return len(self.threads)

    @cached_property
    def group(self) -> FoldedGroup:
        """Return the threads folded into a group, with their statements and trust."""
        group = FoldedGroup(self.wait, self.frames)
        for thread in self.threads:
            group.add(thread)
        return group

    @property
    def queries(self) -> Counter[str]:
        """Count the threads that are running each statement, by the statement's digest."""
        return self.group.queries

    @cached_property
    def haystack(self) -> str:
        """Return the text that the filter is matched against, in lower case."""
        asking = [thread.query for thread in self.threads if thread.query]
        people = {f"{query.user}@{query.host} {query.db}" for query in asking}
        names = {f"{thread.comm} {thread.tid}" for thread in self.threads}
        return "\n".join((*self.key[1], *self.queries, *people, *names)).lower()


class FoldedSnapshot:
    """A snapshot with its threads folded: one row per distinct stack."""

    def __init__(self, snapshot: Snapshot, before: FoldedSnapshot | None = None) -> None:
        """Fold ``snapshot``. Changes in thread counts are relative to ``before``."""
        self.snapshot = snapshot
        groups = group_by_stack(snapshot.threads)
        self.counts: dict[Key, int] = {key: len(threads) for key, threads in groups.items()}
        then = before.counts if before else self.counts
        self.rows = [
            StackRow(key, threads[0].frames, tuple(threads), len(threads) - then.get(key, 0))
            for key, threads in groups.items()
        ]

    def choose(self, choice: Choice) -> list[StackRow]:
        """Return the rows that ``choice`` selects, in the order that it specifies."""
        needle = choice.text.lower()
        rows = [
            row
            for row in self.rows
            if (choice.wait is None or row.wait == choice.wait)
            and not (choice.hide_idle and row.wait in IDLE)
            and (not needle or needle in row.haystack)
        ]
        return sorted(rows, key=lambda row: _sort_key(row, choice.order))


def waits(counts: Mapping[str, int], choice: Choice) -> list[tuple[str, int]]:
    """Return wait classes and thread counts, highest first, without idle classes if ``choice`` hides them."""
    shown = [(wait, count) for wait, count in counts.items() if not (choice.hide_idle and wait in IDLE)]
    return sorted(shown, key=lambda item: (-item[1], item[0]))


def _sort_key(row: StackRow, order: Order) -> tuple[object, ...]:
    if order is Order.CHANGE:
        return (-abs(row.change), -row.count, row.key)
    if order is Order.CLASS:
        return (row.wait, -row.count, row.key)
    if order is Order.FUNCTION:
        return (row.key[1], -row.count)
    return (-row.count, row.key)
