"""Define the incidents that fit into none of the other modules."""

from __future__ import annotations

import contextlib
import os
import signal
from typing import TYPE_CHECKING

from incidents.lab import Incident
from workloads import Burn, Cpu, Fsync, Idle, MetadataLock, Oltp, RowLock, UserLock

if TYPE_CHECKING:
    from collections.abc import Iterator

    from servers import Server


@contextlib.contextmanager
def _stopped(server: Server) -> Iterator[None]:
    """Leave the server stopped, as a killed debugger does."""
    with Cpu(server, 4):
        os.kill(server.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(server.pid, signal.SIGCONT)


@contextlib.contextmanager
def _full(server: Server) -> Iterator[None]:
    """Use up all connections, including the one reserved for SUPER."""
    server.sql("SET GLOBAL max_connections = 10")
    with contextlib.ExitStack() as stack:
        for _ in range(11):
            stack.enter_context(contextlib.closing(server.connect()))
        yield


def _oltp(server: Server) -> Oltp:
    return Oltp(server, 4)


def _row_lock(name: str, server: str) -> Incident:
    return Incident(
        name, server, "row_lock_convoy", lambda s: RowLock(s, 20), _oltp,
        what="a transaction has updated a row and is idle; 20 connections wait to update the row",
    )  # fmt: skip


def _metadata_lock(name: str, server: str) -> Incident:
    return Incident(
        name, server, "metadata_lock", lambda s: MetadataLock(s, 10), _oltp,
        what="a transaction has read a table and is idle; an ALTER TABLE and 10 readers wait for it",
    )  # fmt: skip


def _user_lock(name: str, server: str) -> Incident:
    return Incident(
        name, server, "user_lock", lambda s: UserLock(s, 10), _oltp,
        what="one connection holds a named lock (GET_LOCK), and ten others wait for it",
    )  # fmt: skip


INCIDENTS = (
    _row_lock("row-lock-56", "mysql-5.6.24"),
    _row_lock("row-lock-57", "mysql-5.7.22"),
    _row_lock("row-lock-80", "mysql-8.0.31"),
    _row_lock("row-lock-97", "mysql-9.7"),
    _row_lock("row-lock-1145", "mariadb-11.4.5"),
    _metadata_lock("metadata-lock-56", "mysql-5.6.24"),
    _metadata_lock("metadata-lock-57", "mysql-5.7.22"),
    _metadata_lock("metadata-lock-80", "mysql-8.0.31"),
    _metadata_lock("metadata-lock-97", "mysql-9.7"),
    _metadata_lock("metadata-lock-1145", "mariadb-11.4.5"),
    _user_lock("user-lock-57", "mysql-5.7.22"),
    _user_lock("user-lock-80", "mysql-8.0.31"),
    _user_lock("user-lock-1145", "mariadb-11.4.5"),
    Incident(
        "stopped", "mysql-5.6.24", "server_stopped", _stopped, lambda s: Cpu(s, 4),
        what="the process is stopped (SIGSTOP), as if a debugger had been killed",
    ),
    Incident(
        "commit-fsync", "mysql-5.6.24", "commit_fsync", lambda s: Fsync(s, 8), lambda s: Cpu(s, 8),
        what="8 connections commit small changes in a loop; each commit waits for an fsync of the redo log",
    ),
    Incident(
        "cpu-loop", "mariadb-11.4.5", "cpu_loop", lambda s: Burn(s, 1), lambda s: Idle(s, 10),
        what="one connection runs an endless CPU-bound query",
    ),
    Incident(
        "too-many-connections", "mysql-5.6.24", "too_many_connections", _full, lambda s: Idle(s, 10),
        what="all 10 connections (max_connections) are in use, and so is the one reserved for SUPER",
    ),
)  # fmt: skip
