"""Workloads whose threads run through a cycle of states."""

from __future__ import annotations

import contextlib
from abc import abstractmethod
from typing import TYPE_CHECKING, ClassVar

from workloads.base import Workload, WorkloadError
from workloads.clients import Clients, prepare, repeating
from workloads.crowd import Crowd

if TYPE_CHECKING:
    from collections.abc import Sequence

    from servers import Server

#: Number of operations after which a load counts as started. The number is low, because 1,000 clients that
#: update one row complete only 50 operations per second.
_WARM = 50

#: A server with fewer dirty pages than this counts as clean, because background work always dirties some.
_CLEAN = 50

#: Wait classes of a thread between two statements, on any server.
_BETWEEN = frozenset({"idle", "on_cpu", "network_send", "opening_tables", "spin", "mutex_wait"})

#: Wait classes of a commit: one client writes the redo log, and other clients wait for that client.
_COMMIT = frozenset({"fsync_redo", "redo_write_wait", "group_commit"})


#: InnoDB's default page size in bytes.
_PAGE = 16_384

#: Approximate bytes of a row of ``fill``: seven fit into a page of 16 KiB.
ROW = 2_100


def fill(workload: Workload, table: str, rows: int) -> None:
    """Create a table with ``rows`` rows of 2 KB: ``a`` counts from 1, ``b`` is 0, and ``pad`` is filler."""
    columns = "a INT PRIMARY KEY, b INT, pad VARCHAR(2100)"
    workload.sql(f"CREATE TABLE {table} ({columns}) ENGINE=InnoDB")
    workload.sql(f"INSERT INTO {table} VALUES (1, 0, REPEAT('x', 2000))")
    made = 1
    while made < rows:
        more = min(made, rows - made)
        workload.sql(f"INSERT INTO {table} SELECT a + {made}, b, pad FROM {table} ORDER BY a LIMIT {more}")
        made += more


class _Loaded(Workload):
    """Clients that run in a separate process."""

    @abstractmethod
    def prepare(self) -> None:
        """Create the tables."""

    @abstractmethod
    def script(self) -> Sequence[str]:
        """Return the sysbench script that every client runs, followed by its options."""

    def begin(self) -> None:
        self.prepare()
        self._counted_before = self._counted()
        self.clients = self._stack.enter_context(
            Clients(self.server, self.count, self.database, self.script())
        )

    def reached(self) -> bool:
        """Return whether all clients are connected and the load has started."""
        self.clients.check()
        return len(self.listed("TRUE")) == self.count and self.throughput() >= _WARM


class _Busy(_Loaded):
    """Clients that repeat the given statements."""

    rows: ClassVar[int] = 1

    @abstractmethod
    def statements(self) -> Sequence[str]:
        """Return the statements that each client repeats."""

    def script(self) -> Sequence[str]:
        return repeating(self.statements(), self.rows)

    def prepare(self) -> None:
        """Create the tables: by default one with ``rows`` rows."""
        self.sql(f"CREATE TABLE {self.database}.t1 (a INT PRIMARY KEY, b INT) ENGINE=InnoDB")
        values = ", ".join(f"({row}, 0)" for row in range(1, self.rows + 1))
        self.sql(f"INSERT INTO {self.database}.t1 VALUES {values}")


class UpdateStorm(_Busy):
    """Clients that increment the same row and queue for its lock. Each wait triggers a deadlock search.

    With about 100 clients or more, most wait for the row lock; with fewer, for the redo log at commit.
    """

    name: ClassVar[str] = "update_storm"
    expected: ClassVar[str] = "row_lock"
    also: ClassVar[frozenset[str]] = _BETWEEN | _COMMIT | {"deadlock_search"}
    counter: ClassVar[str] = "Com_update"

    @property
    def describe(self) -> str:
        return f"{self.count} clients updating one row"

    def statements(self) -> Sequence[str]:
        return ["UPDATE t1 SET b = b + 1 WHERE a = 1"]


class Cpu(_Busy):
    """Clients that select single rows from a cached table, so that threads wait only for the next command."""

    name: ClassVar[str] = "cpu"
    expected: ClassVar[str] = "on_cpu"
    also: ClassVar[frozenset[str]] = _BETWEEN
    counter: ClassVar[str] = "Com_select"
    rows: ClassVar[int] = 10_000

    @property
    def describe(self) -> str:
        return f"{self.count} clients reading single rows from memory"

    def statements(self) -> Sequence[str]:
        return ["SELECT b FROM t1 WHERE a = $R"]


class Fsync(_Busy):
    """Clients that insert single rows. Each commit is flushed to disk; there is no binary log."""

    name: ClassVar[str] = "fsync"
    expected: ClassVar[str] = "fsync_redo"
    also: ClassVar[frozenset[str]] = _BETWEEN | _COMMIT
    server_options: ClassVar[tuple[str, ...]] = ("--innodb-flush-log-at-trx-commit=1",)
    counter: ClassVar[str] = "Com_insert"

    @property
    def describe(self) -> str:
        return f"{self.count} clients committing single-row inserts to disk"

    def prepare(self) -> None:
        self.sql(f"CREATE TABLE {self.database}.t1 (a INT AUTO_INCREMENT PRIMARY KEY, b INT) ENGINE=InnoDB")

    def statements(self) -> Sequence[str]:
        return ["INSERT INTO t1 (b) VALUES (1)"]


class Writers(_Busy):
    """Clients that change a random row in a table of ``megabytes`` MiB with each statement, to dirty pages.

    ``rewrite`` changes all 2,000 bytes of the row, to write much redo. ``rate`` limits the statements per
    second of all clients. With ``clean``, the clients start only when hardly any page is dirty.
    """

    name: ClassVar[str] = "writers"
    expected: ClassVar[str] = "on_cpu"
    also: ClassVar[frozenset[str]] = _BETWEEN | _COMMIT
    counter: ClassVar[str] = "Com_update"

    def __init__(
        self,
        server: Server,
        count: int,
        *,
        megabytes: int = 32,
        rewrite: bool = False,
        rate: int = 0,
        clean: bool = False,
    ) -> None:
        super().__init__(server, count)
        self._rows = (megabytes << 20) // ROW
        self._rewrite, self._rate, self._clean = rewrite, rate, clean

    @property
    def describe(self) -> str:
        return f"{self.count} clients changing rows at random"

    def prepare(self) -> None:
        fill(self, f"{self.database}.t1", self._rows)
        if self._clean:
            dirty = "SHOW GLOBAL STATUS LIKE 'Innodb_buffer_pool_pages_dirty'"
            self._until(lambda: int(self.sql(dirty)[0][1]) < _CLEAN)

    def statements(self) -> Sequence[str]:
        more = ", pad = REPEAT(CHAR(65 + b % 26), 2000)" if self._rewrite else ""
        return [f"UPDATE t1 SET b = b + 1{more} WHERE a = $R"]

    def script(self) -> Sequence[str]:
        return [*repeating(self.statements(), self._rows), f"--rate={self._rate}"]


class Readers(Writers):
    """Clients that read a random row with each statement."""

    name: ClassVar[str] = "readers"
    counter: ClassVar[str] = "Com_select"

    @property
    def describe(self) -> str:
        return f"{self.count} clients reading rows at random"

    def statements(self) -> Sequence[str]:
        return ["SELECT b FROM t1 WHERE a = $R"]


class Sysbench(_Loaded):
    """One of sysbench's own scripts, with options. ``rate`` limits the events per second of all clients."""

    name: ClassVar[str] = "sysbench"
    expected: ClassVar[str] = "on_cpu"
    also: ClassVar[frozenset[str]] = _BETWEEN | _COMMIT | {"row_lock"}
    counter: ClassVar[str] = "Questions"

    def __init__(self, server: Server, count: int, script: Sequence[str], *, rate: int = 0) -> None:
        super().__init__(server, count)
        self._script = [*script, f"--rate={rate}"]

    @property
    def describe(self) -> str:
        return f"{self.count} clients of sysbench {self._script[0]}"

    def prepare(self) -> None:
        prepare(self.server, self.database, [*self._script, f"--threads={self.count}"])

    def script(self) -> Sequence[str]:
        return self._script


class Oltp(Sysbench):
    """sysbench's oltp_read_write: transactions of 18 statements on tables that fit into the buffer pool."""

    name: ClassVar[str] = "oltp"
    counter: ClassVar[str] = "Com_commit"

    def __init__(self, server: Server, count: int) -> None:
        super().__init__(server, count, ("oltp_read_write", "--tables=4", "--table-size=25000"))


class TableScan(_Busy):
    """Clients that scan two tables alternately. Each exceeds the buffer pool, so scans read from disk."""

    name: ClassVar[str] = "table_scan"
    expected: ClassVar[str] = "page_read"
    also: ClassVar[frozenset[str]] = _BETWEEN | {"read_ahead", "free_page_wait"}
    #: Without O_DIRECT, pages would come from the kernel's cache and threads would not wait.
    server_options: ClassVar[tuple[str, ...]] = (
        "--innodb-buffer-pool-size=16M", "--innodb-flush-method=O_DIRECT",
    )  # fmt: skip
    counter: ClassVar[str] = "Innodb_pages_read"

    @property
    def describe(self) -> str:
        return f"{self.count} clients scanning two tables that do not fit the buffer pool"

    def prepare(self) -> None:
        pool = self.sql("SELECT @@innodb_buffer_pool_size")[0][0]
        self._pool_pages = pool // _PAGE
        for table in ("t1", "t2"):
            fill(self, f"{self.database}.{table}", 3 * pool // 2 // ROW)

    def reached(self) -> bool:
        """Return whether as many pages have been read as the buffer pool has.

        Before that, threads mainly write the pages that became dirty while the tables were filled.
        """
        return super().reached() and self.throughput() >= self._pool_pages

    def statements(self) -> Sequence[str]:
        return [f"SELECT COUNT(*) FROM {table} WHERE pad = 'z'" for table in ("t1", "t2")]


class Burn(Workload):
    """``SELECT BENCHMARK``: CPU-bound statements that do not end."""

    name: ClassVar[str] = "burn"
    expected: ClassVar[str] = "on_cpu"

    #: Maximum number of threads; with more threads, the host would become unresponsive.
    _MOST = 64

    @property
    def describe(self) -> str:
        return f"{self.count} CPU-bound statements"

    def begin(self) -> None:
        if self.count > self._MOST:
            raise WorkloadError(f"{self.name}: at most {self._MOST} connections, not {self.count}")
        self._crowd = self._stack.enter_context(Crowd(self.server, self.count, self.database))
        # CRC32 is used, because 9.7 has no MD5 and 5.5 may lack SHA2
        self._crowd.send("SELECT BENCHMARK(1000000000000, CRC32('innoscope'))")

    def reached(self) -> bool:
        self._crowd.check()
        return len(self.listed("COMMAND = 'Query' AND INFO LIKE 'SELECT BENCHMARK%'")) == self.count


class Repeated(_Busy):
    """Clients that repeat the given statements. The statements in ``make`` run once beforehand.

    ``$R`` in a statement is a random number up to ``among``. ``rate`` limits the statements per second of all
    clients. ``reconnect`` opens a new connection for each statement.
    """

    name: ClassVar[str] = "repeated"
    expected: ClassVar[str] = "on_cpu"
    counter: ClassVar[str] = "Questions"

    def __init__(
        self,
        server: Server,
        count: int,
        statements: Sequence[str],
        *,
        make: Sequence[str] = (),
        among: int = 1,
        rate: int = 0,
        reconnect: bool = False,
    ) -> None:
        super().__init__(server, count)
        self._statements, self._make, self._among = statements, make, among
        self._options = [f"--rate={rate}", f"--reconnect={'on' if reconnect else 'off'}"]

    @property
    def describe(self) -> str:
        return f"{self.count} clients repeating {'; '.join(self._statements)}"

    def prepare(self) -> None:
        with (
            contextlib.closing(self.server.connect(database=self.database)) as connection,
            connection.cursor() as cursor,
        ):
            for statement in self._make:
                cursor.execute(statement)

    def script(self) -> Sequence[str]:
        return [*repeating(self._statements, self._among), *self._options]

    def statements(self) -> Sequence[str]:
        return self._statements
