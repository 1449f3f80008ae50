"""Build the blocking graph, whose edges lead from waiting threads to lock owners, and find its roots.

A lock owner may itself be waiting for another lock owner. A node is a thread id, or the negated connection id
if the thread id is unknown.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from innoscope.diagnose.answers import ROW_LOCK_WAITS
from innoscope.diagnose.metadata_locks import held_locks

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from innoscope.diagnose.evidence import ConnectionActivity, Evidence
    from innoscope.memory.locks.held import HeldLock


@dataclass(frozen=True, slots=True)
class Edge:
    """An edge from ``waiter`` to the ``owner`` of the lock that it is waiting for.

    ``lock`` is a description of the lock, ``wait`` is the waiter's wait class, and ``held`` is the lock's
    state in the server's memory if it was read.
    """

    waiter: int
    owner: int
    lock: str
    wait: str
    held: HeldLock | None = None


@dataclass(frozen=True, slots=True)
class Root:
    """The lock owner at the end of a chain of waiting threads.

    The owner is not waiting for a known thread, or it is waiting for a thread in the chain (``cycle``).
    ``waiting`` is the number of threads waiting for the owner directly or indirectly. ``path`` lists the
    edges of the most frequent chain, from a waiter to the root.
    """

    node: int
    lock: str
    waiting: int
    path: tuple[Edge, ...]
    cycle: bool = False


class Graph:
    """The blocking graph, built from the lock owners in memory and the results of SQL queries."""

    def __init__(self, evidence: Evidence) -> None:
        self._evidence = evidence
        self._threads = {one.connection: one.tid for one in evidence.statements if one.tid is not None}
        self._out: dict[int, list[Edge]] = {}
        for edge in (*self._from_memory(), *self._row_locks(), *self._metadata_locks()):
            if edge.waiter != edge.owner:
                self._out.setdefault(edge.waiter, []).append(edge)

    @cached_property
    def _statements(self) -> dict[int, ConnectionActivity]:
        return {self._node(one.connection): one for one in self._evidence.statements}

    def statement(self, node: int) -> ConnectionActivity | None:
        """Return the activity of a node's connection; None if it is unknown."""
        return self._statements.get(node)

    def roots(self, waits: Iterable[str]) -> list[Root]:
        """Return the roots that ultimately block threads in the given wait classes, most waiters first."""
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
        """Return the Root for a node, with the most frequent chain of owners that leads to it."""
        through = Counter(tuple(edge.owner for edge in path[:-1]) for path in paths)
        common = max(through, key=lambda owners: (through[owners], -len(owners)))
        path = next(path for path in paths if tuple(edge.owner for edge in path[:-1]) == common)
        lock = Counter(one[-1].lock for one in paths).most_common(1)[0][0]
        more = max(0, self._waiting(path[0]) - len(path[0].held.waiters)) if path[0].held else 0
        return Root(node, lock, waiting + more, path, cycle)

    def _waiting(self, edge: Edge) -> int:
        return edge.held.waiting if edge.held else 0

    def _path(self, start: int) -> tuple[tuple[Edge, ...], bool]:
        """Return the path from a waiter to its root, and whether it ends in a cycle."""
        path: list[Edge] = []
        visited = {start}
        node = start
        while edges := self._out.get(node):
            edge = next((one for one in edges if one.owner not in visited), edges[0])
            path.append(edge)
            if edge.owner in visited:
                return tuple(path), True
            node = edge.owner
            visited.add(node)
        return tuple(path), False

    def _from_memory(self) -> Iterator[Edge]:
        for held in self._evidence.owners:
            if held.owner is not None:
                for waiter in held.waiters:
                    yield Edge(waiter, held.owner, held.name, held.wait, held)

    def _row_locks(self) -> Iterator[Edge]:
        """Yield an edge for each row lock wait, from SQL or from memory."""
        for row in self._evidence.answers.get(ROW_LOCK_WAITS, ()):
            if row["waiter"].isdigit() and row["blocker"].isdigit():
                waiter, blocker = (self._node(int(row[side])) for side in ("waiter", "blocker"))
                place = row.get("lock")
                yield Edge(waiter, blocker, f"a row lock on {place}" if place else "a row lock", "row_lock")

    def _metadata_locks(self) -> Iterator[Edge]:
        """Yield edges from threads waiting for a metadata lock to holders that are not waiting for it."""
        for held in held_locks(self._evidence.answers.get("metadata_locks", ())):
            for waiter in held.waiters:
                yield Edge(self._node(waiter), self._node(held.connection), held.words, "metadata_lock")

    def _node(self, connection: int) -> int:
        return self._threads.get(connection) or -connection
