"""Start the servers of a cluster, join them, and stop them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import ExitStack
from typing import TYPE_CHECKING, Self

from servers import free_port
from waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from servers import Server

#: Number of servers in each cluster.
NODES = 3


class Cluster(ABC):
    """Context manager around the servers of a cluster. The block begins once all of them have joined.

    If ``first`` is already running as a single server, it is restarted. The options of ``first`` apply to all
    nodes.
    """

    def __init__(self, first: Server, others: Iterable[Server], within_s: float) -> None:
        self._given = tuple(first.options or ())
        self._within_s = within_s
        self._stack = ExitStack()
        self.nodes: list[Server] = [first, *others]

    def __enter__(self) -> Self:
        ports = [free_port() for _ in self.nodes]
        for number, node in enumerate(self.nodes):
            node.options = self._options(number, ports)
        try:
            if self.nodes[0].running:
                self.nodes[0].stop()
            self._join()
            until(self._joined, self._describe, within_s=self._within_s)
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """Stop all nodes except the first one, which belongs to the caller."""
        self._stack.close()

    def wait_for_rows(self, database: str, table: str, rows: int) -> None:
        """Return once the table has ``rows`` rows on each node."""
        until(lambda: all(_has_rows(node, database, table, rows) for node in self.nodes))

    @abstractmethod
    def _options(self, number: int, ports: Sequence[int]) -> list[str]:
        """Return all options of node ``number``; ``ports`` lists the ports on which the nodes communicate."""

    @abstractmethod
    def _join(self) -> None:
        """Start all nodes, and register on ``self._stack`` those that the cluster must stop."""

    @abstractmethod
    def _joined(self) -> bool:
        """Return whether all nodes are members of the cluster."""

    def _describe(self) -> str:
        return "\n".join(node.error_log.read_text()[-3000:] for node in self.nodes if node.running)


def _has_rows(node: Server, database: str, table: str, rows: int) -> bool:
    found = node.sql(
        "SELECT 1 FROM information_schema.TABLES"
        f" WHERE TABLE_SCHEMA = '{database}' AND TABLE_NAME = '{table}'"
    )
    return bool(found) and node.sql(f"SELECT COUNT(*) FROM {database}.{table}") == [(rows,)]
