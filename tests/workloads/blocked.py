"""Workloads whose threads are blocked for a known reason."""

from __future__ import annotations

from typing import ClassVar

from workloads.base import Workload
from workloads.crowd import Crowd

#: A lock wait timeout in seconds that is longer than any measurement.
_FOREVER = 100_000


class Idle(Workload):
    """Connections that execute no statement; the server's threads wait for the next command."""

    name: ClassVar[str] = "idle"
    expected: ClassVar[str] = "idle"

    @property
    def describe(self) -> str:
        return f"{self.count} idle connections"

    def begin(self) -> None:
        self._stack.enter_context(Crowd(self.server, self.count, self.database))

    def reached(self) -> bool:
        return len(self.listed("COMMAND = 'Sleep'")) == self.count


class Sleep(Workload):
    """``SELECT SLEEP``: threads execute a statement, but do not use a CPU or wait for InnoDB."""

    name: ClassVar[str] = "sleep"
    expected: ClassVar[str] = "user_sleep"

    @property
    def describe(self) -> str:
        return f"{self.count} connections in SELECT SLEEP"

    def begin(self) -> None:
        self._sleepers = self._stack.enter_context(Crowd(self.server, self.count, self.database))
        self._sleepers.send(f"SELECT SLEEP({_FOREVER})")

    def reached(self) -> bool:
        self._sleepers.check()
        return len(self.listed("STATE = 'User sleep'")) == self.count


#: Maximum waiters per row. In 5.5 and 5.6, the time for a deadlock search grows with the cube of this number
#: (60 s for 1,000 waiters).
_QUEUE = 200


class RowLock(Workload):
    """One transaction holds row locks, and all others wait for them: at most ``_QUEUE`` for each row."""

    name: ClassVar[str] = "row_lock"
    expected: ClassVar[str] = "row_lock"
    poll: ClassVar[float] = 0.15  # INNODB_TRX is refreshed only if it has not been read for 0.1 s

    @property
    def describe(self) -> str:
        rows = "a row" if self._rows == 1 else f"one of {self._rows} rows"
        return f"{self.count} updates waiting for {rows} that another transaction holds"

    @property
    def _rows(self) -> int:
        return -(-self.count // _QUEUE)

    def begin(self) -> None:
        self.sql(f"CREATE TABLE {self.database}.t1 (a INT PRIMARY KEY, b INT) ENGINE=InnoDB")
        rows = range(1, self._rows + 1)
        self.sql(f"INSERT INTO {self.database}.t1 VALUES {', '.join(f'({row}, 0)' for row in rows)}")
        hold = ("BEGIN", "UPDATE t1 SET b = b + 1")
        self._holder = self._stack.enter_context(Crowd(self.server, 1, self.database, hold))
        wait = (f"SET SESSION innodb_lock_wait_timeout = {_FOREVER}",)
        self._waiters = self._stack.enter_context(Crowd(self.server, self.count, self.database, wait))
        self._waiters.send(*(f"UPDATE t1 SET b = b + 1 WHERE a = {row}" for row in rows))

    def reached(self) -> bool:
        """Return whether all waiters are waiting for a lock."""
        rows = self.sql(
            "SELECT trx_mysql_thread_id FROM information_schema.INNODB_TRX WHERE trx_state = 'LOCK WAIT'"
        )
        waiting = {row[0] for row in rows} & set(self._waiters.ids)
        self._waiters.check()  # a server may report a long queue as a deadlock
        return len(waiting) == self.count

    def connection_ids(self) -> list[int]:
        return self._waiters.ids

    @property
    def holder_id(self) -> int:
        """Return the id of the connection that holds the row locks."""
        return self._holder.ids[0]


class UserLock(Workload):
    """One connection holds a named lock, and all others wait for the lock."""

    name: ClassVar[str] = "user_lock"
    expected: ClassVar[str] = "user_lock"

    @property
    def describe(self) -> str:
        return f"{self.count} connections that wait for GET_LOCK"

    def begin(self) -> None:
        hold = ("SELECT GET_LOCK('job', 0)",)
        self._stack.enter_context(Crowd(self.server, 1, self.database, hold))
        self._waiters = self._stack.enter_context(Crowd(self.server, self.count, self.database))
        self._waiters.send(f"SELECT GET_LOCK('job', {_FOREVER})")

    def reached(self) -> bool:
        self._waiters.check()
        return len(self.listed("STATE = 'User lock'")) == self.count


class MetadataLock(Workload):
    """An idle transaction holds a metadata lock, an ALTER waits for it, and readers wait for the ALTER."""

    name: ClassVar[str] = "metadata_lock"
    expected: ClassVar[str] = "metadata_lock"

    @property
    def describe(self) -> str:
        return f"{self.count} selects queued behind an ALTER TABLE that waits for an open transaction"

    def begin(self) -> None:
        self.sql(f"CREATE TABLE {self.database}.t1 (a INT PRIMARY KEY, b INT) ENGINE=InnoDB")
        self.sql(f"INSERT INTO {self.database}.t1 VALUES (1, 0)")
        hold = ("BEGIN", "SELECT * FROM t1")
        self._stack.enter_context(Crowd(self.server, 1, self.database, hold))
        alter = self._stack.enter_context(Crowd(self.server, 1, self.database))
        alter.send("ALTER TABLE t1 ADD COLUMN c INT")
        self._until(lambda: len(self.connection_ids()) == 1)
        self._readers = self._stack.enter_context(Crowd(self.server, self.count, self.database))
        self._readers.send("SELECT * FROM t1")

    def reached(self) -> bool:
        self._readers.check()
        return len(self.connection_ids()) == self.count + 1

    def connection_ids(self) -> list[int]:
        """Return the connection ids of the readers and of the ALTER."""
        return self.listed("STATE LIKE 'Waiting for table%'")
