"""The base class of all workloads, which creates a database, waits for the intended state, and cleans up."""

from __future__ import annotations

import contextlib
import time
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar, Self

import pymysql

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from servers import Server

#: Maximum seconds for a reply on the workload's own connection; a stopped server never replies.
_ANSWERS_WITHIN = 120

#: Error "Unknown thread id": the connection ended before it was killed.
_NO_SUCH_THREAD = 1094


class WorkloadError(RuntimeError):
    """An error of a workload that cannot reach or keep its intended state."""


class Workload(ABC):
    """Context manager: the block begins once ``count`` connections of ``server`` are in the intended state.

    ``expected`` is the wait class of the affected threads. Snapshots may also show the classes in ``also``,
    because the threads run through a cycle (for example, a CPU-bound thread is idle between statements).
    """

    name: ClassVar[str]
    expected: ClassVar[str]
    also: ClassVar[frozenset[str]] = frozenset()
    server_options: ClassVar[tuple[str, ...]] = ()
    counter: ClassVar[str] = ""  #: status variable that counts the operations
    poll: ClassVar[float] = 0.05  #: seconds between two checks for the intended state

    def __init__(self, server: Server, count: int = 10, *, ready_timeout: float = 120) -> None:
        self.server = server
        self.count = count
        self.database = ""
        self._ready_timeout = ready_timeout
        self._stack = contextlib.ExitStack()
        self._counted_before = 0
        self._monitor: pymysql.connections.Connection[Any] | None = None

    def __enter__(self) -> Self:
        try:
            monitor = self.server.connect(read_timeout=_ANSWERS_WITHIN)
            self._monitor = self._stack.enter_context(contextlib.closing(monitor))
            self.database = f"w_{self.name}_{self.sql('SELECT CONNECTION_ID()')[0][0]}"
            self.sql(f"CREATE DATABASE {self.database}")
            self._stack.callback(self._clear)
            self._counted_before = self._counted()
            self.begin()
            self._until(self.reached)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._stack.close()
        except (pymysql.err.MySQLError, OSError):
            if self.server.running:  # a test may have killed the server
                raise

    @property
    @abstractmethod
    def describe(self) -> str:
        """Return a description of the workload, with its number of connections."""

    @abstractmethod
    def begin(self) -> None:
        """Start the workload. Register all cleanup on ``self._stack``."""

    @abstractmethod
    def reached(self) -> bool:
        """Return whether the server is in the intended state."""

    def connection_ids(self) -> list[int]:
        """Return the connection ids of the affected connections."""
        return self.listed("TRUE")

    def os_threads(self) -> list[int] | None:
        """Return the affected thread ids; None if the server does not report them (MySQL before 5.7)."""
        if not self.server.spec.os_thread_sql:
            return None
        threads = dict(self.sql(self.server.spec.os_thread_sql))
        return [threads[connection] for connection in self.connection_ids() if connection in threads]

    def throughput(self) -> int:
        """Return the number of operations since the workload began; 0 for workloads that only wait."""
        return self._counted() - self._counted_before

    def sql(self, statement: str) -> list[tuple[Any, ...]]:
        """Run a statement on the workload's own connection."""
        assert self._monitor is not None
        with self._monitor.cursor() as cursor:
            cursor.execute(statement)
            return list(cursor.fetchall())

    def listed(self, condition: str) -> list[int]:
        """Return the workload's connections in the process list that satisfy the condition."""
        rows = self.sql(
            f"SELECT ID FROM information_schema.PROCESSLIST WHERE DB = '{self.database}' AND {condition}"
        )
        return sorted(row[0] for row in rows)

    def _counted(self) -> int:
        rows = self.sql(f"SHOW GLOBAL STATUS LIKE '{self.counter}'") if self.counter else []
        return int(rows[0][1]) if rows else 0

    def _until(self, reached: Callable[[], bool]) -> None:
        deadline = time.monotonic() + self._ready_timeout
        while not reached():
            if time.monotonic() > deadline:
                raise WorkloadError(
                    f"{self.describe}: not reached on {self.server.name} within {self._ready_timeout:.0f} s;"
                    f" its connections: {self._states()}"
                )
            time.sleep(self.poll)

    def _states(self) -> Iterable[tuple[Any, ...]]:
        return self.sql(
            "SELECT COMMAND, STATE, COUNT(*) FROM information_schema.PROCESSLIST"
            f" WHERE DB = '{self.database}' GROUP BY COMMAND, STATE"
        )

    def _clear(self) -> None:
        """Drop the database. First kill the connections that the server still lists."""
        self._until(self._none_left)
        self.sql(f"DROP DATABASE {self.database}")

    def _none_left(self) -> bool:
        left = self.listed("TRUE")
        for connection in left:
            try:
                self.sql(f"KILL {connection}")
            except pymysql.err.MySQLError as error:
                if error.args[0] != _NO_SUCH_THREAD:
                    raise
        return not left
