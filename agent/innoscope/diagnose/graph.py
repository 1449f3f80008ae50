"""Who waits for whom, as a graph: from many waiting threads over those who hold up others to the root.

A node is a thread: its id, or minus the connection's id where the thread is not known. Pure functions.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from innoscope.diagnose.evidence import Evidence, Statement
    from innoscope.memory.locks.held import HeldLock


@dataclass(frozen=True, slots=True)
class Edge:
    """``waiter`` waits for a lock that ``owner`` holds.

    ``lock`` is in words, ``wait`` the waiter's wait class, ``held`` what memory tells of the lock.
    """

    waiter: int
    owner: int
    lock: str
    wait: str
    held: HeldLock | None = None


@dataclass(frozen=True, slots=True)
class Root:
    """The one at the end of a chain, who waits for nobody that is known (or for one of the chain: ``cycle``).

    ``waiting`` wait for it in the end. ``path`` is the way there, from the first of those who hold up most
    others to the root: the edge out of each.
    """

    node: int
    lock: str
    waiting: int
    path: tuple[Edge, ...]
    cycle: bool = False


class Graph:
    """Of one evidence: locks that memory tells the owners of, and those that the server tells."""

    def __init__(self, evidence: Evidence) -> None:
        self._evidence = evidence
        self._threads = {one.connection: one.tid for one in evidence.statements if one.tid is not None}
        self._out: dict[int, list[Edge]] = {}
        for edge in (*self._of_memory(), *self._row_locks(), *self._metadata_locks()):
            if edge.waiter != edge.owner:
                self._out.setdefault(edge.waiter, []).append(edge)

    @cached_property
    def _statements(self) -> dict[int, Statement]:
        return {self._node(one.connection): one for one in self._evidence.statements}

    def statement(self, node: int) -> Statement | None:
        """What that thread runs, where the server or its memory tells it."""
        return self._statements.get(node)

    def roots(self, waits: Iterable[str]) -> list[Root]:
        """Those that the threads in these wait classes wait for in the end, most waiters first."""
        classes = set(waits)
        starts = {edge.waiter for edges in self._out.values() for edge in edges if edge.wait in classes}
        found: Counter[int] = Counter()
        paths: dict[int, list[tuple[Edge, ...]]] = {}
        cycles: set[int] = set()
        for start in starts:
            path, cycle = self._path(start)
            root = path[-1].owner
            found[root] += 1
            paths.setdefault(root, []).append(path)
            if cycle:
                cycles.add(root)
        return [
            self._root(root, waiting, paths[root], root in cycles) for root, waiting in found.most_common()
        ]

    def _root(self, node: int, waiting: int, paths: list[tuple[Edge, ...]], cycle: bool) -> Root:
        """With the way that most of its waiters have in common at its end."""
        through = Counter(tuple(edge.owner for edge in path[:-1]) for path in paths)
        common = max(through, key=lambda owners: (through[owners], -len(owners)))
        path = next(path for path in paths if tuple(edge.owner for edge in path[:-1]) == common)
        lock = Counter(one[-1].lock for one in paths).most_common(1)[0][0]
        more = max(0, self._told(path[0]) - len(path[0].held.waiters)) if path[0].held else 0
        return Root(node, lock, waiting + more, path, cycle)

    def _told(self, edge: Edge) -> int:
        return edge.held.waiting if edge.held else 0

    def _path(self, start: int) -> tuple[tuple[Edge, ...], bool]:
        """From a waiter to its root; True at its end where it comes back to one that it has passed."""
        path: list[Edge] = []
        passed = {start}
        node = start
        while edges := self._out.get(node):
            edge = next((one for one in edges if one.owner not in passed), edges[0])
            path.append(edge)
            if edge.owner in passed:
                return tuple(path), True
            node = edge.owner
            passed.add(node)
        return tuple(path), False

    def _of_memory(self) -> Iterator[Edge]:
        for held in self._evidence.owners:
            if held.owner is not None:
                for waiter in held.waiters:
                    yield Edge(waiter, held.owner, held.name, held.wait, held)

    def _row_locks(self) -> Iterator[Edge]:
        """As far as the server says who waits for whom."""
        for row in self._evidence.answers.get("row_lock_waits", ()):
            if row["waiter"].isdigit() and row["blocker"].isdigit():
                waiter, blocker = (self._node(int(row[side])) for side in ("waiter", "blocker"))
                yield Edge(waiter, blocker, "a row's lock", "row_lock")

    def _metadata_locks(self) -> Iterator[Edge]:
        """Who wants one on a table, and who was granted one there and does not wait for another."""
        rows = [
            row for row in self._evidence.answers.get("metadata_locks", ()) if row["connection"].isdigit()
        ]
        pending = {(row["connection"], *_table(row)) for row in rows if row["status"] == "PENDING"}
        for row in rows:
            if row["status"] == "GRANTED" and (row["connection"], *_table(row)) not in pending:
                for connection, *table in pending:
                    if table == [*_table(row)]:
                        words = f"{row['type']} on {'.'.join(_table(row))}"
                        yield Edge(
                            self._node(int(connection)),
                            self._node(int(row["connection"])),
                            words,
                            "metadata_lock",
                        )

    def _node(self, connection: int) -> int:
        return self._threads.get(connection) or -connection


def _table(row: Mapping[str, str]) -> tuple[str, str]:
    return row["schema"], row["object"]
