"""What all workloads share: a database of their own, a state that is waited for, a clean end."""

from __future__ import annotations

import contextlib
import time
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar, Self

import pymysql

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from servers import Server

#: Seconds for an answer to the monitor; a server that a debugger left stopped gives none.
_ANSWERS_WITHIN = 120

#: "Unknown thread id": it was gone before we could end it.
_NO_SUCH_THREAD = 1094


class WorkloadError(RuntimeError):
    """The state that the workload stands for did not come about."""


class Workload(ABC):
    """A context manager that returns once ``count`` connections of ``server`` are in the known state.

    ``expected`` is the wait class that the affected threads are to have, ``also`` are classes that some of
    them pass through at any one look because the state is a cycle (one that computes is idle in between).
    """

    name: ClassVar[str]
    expected: ClassVar[str]
    also: ClassVar[frozenset[str]] = frozenset()
    server_options: ClassVar[tuple[str, ...]] = ()
    counter: ClassVar[str] = ""  #: status variable that counts the operations
    poll: ClassVar[float] = 0.05  #: seconds between two questions whether the state is reached

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
            if self.server.running:  # a test may well have killed it under us
                raise

    @property
    @abstractmethod
    def describe(self) -> str:
        """The workload in words, with its number."""

    @abstractmethod
    def begin(self) -> None:
        """Bring the state about. What is to be ended goes on ``self._stack``."""

    @abstractmethod
    def reached(self) -> bool:
        """Whether the server is in that state now."""

    def connection_ids(self) -> list[int]:
        """The affected connections, by the ids that the server gives them."""
        return self.listed("TRUE")

    def os_threads(self) -> list[int] | None:
        """The affected threads by thread id; None where the server cannot tell (MySQL before 5.7)."""
        if not self.server.spec.os_thread_sql:
            return None
        threads = dict(self.sql(self.server.spec.os_thread_sql))
        return [threads[connection] for connection in self.connection_ids() if connection in threads]

    def throughput(self) -> int:
        """Operations done since the workload began; 0 for one that only waits."""
        return self._counted() - self._counted_before

    def sql(self, statement: str) -> list[tuple[Any, ...]]:
        """Run a statement on the workload's own connection."""
        assert self._monitor is not None
        with self._monitor.cursor() as cursor:
            cursor.execute(statement)
            return list(cursor.fetchall())

    def listed(self, condition: str) -> list[int]:
        """The workload's connections that the process list shows under this condition."""
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
        """End what is left (a server does not notice that a sleeper's client has gone), and tidy up."""
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
