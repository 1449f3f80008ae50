"""Define healthy loads, and the findings that are true for them.

Under a healthy load, the server does what its clients request, as fast as the host permits. If the load
saturates a CPU or the disk, a finding that says so is correct. ``TRUTHS`` defines when each such finding is
true. It uses only counts measured independently of Innoscope (counted.py). Any other finding is a false
alarm.
"""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from workloads import Idle, Repeated, Sysbench, TableScan

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from incidents.counted import Counted
    from servers import Server

SERVERS: Final = ("mysql-5.7.22", "mysql-8.0.31", "mariadb-10.11")


@dataclass(frozen=True, slots=True)
class Truth:
    """The condition under which a finding is true. ``counts`` formats the numbers that prove it."""

    means: str
    holds: Callable[[Counted], bool]
    counts: Callable[[Counted], str]


@dataclass(frozen=True, slots=True)
class Healthy:
    """A healthy load. ``right`` names the findings that may be true for it, and ``why`` explains them."""

    name: str
    what: str
    load: Callable[[Server], AbstractContextManager[object]]
    why: str
    right: tuple[str, ...] = ()
    options: tuple[str, ...] = ()


TRUTHS: Final[dict[str, Truth]] = {
    "cpu_saturated": Truth(
        "at least 90 % of the host's CPU time is used, and at least two server threads per CPU are runnable",
        lambda c: c.host_busy >= 0.9 and c.runnable >= 2 * c.cpus,
        lambda c: f"host {c.host_busy:.0%} busy, {c.runnable:.1f} runnable threads on {c.cpus} CPUs",
    ),
    "cpu_loop": Truth(
        "one thread is runnable in at least 85 % of the samples, and at most three are on average",
        lambda c: c.runner >= 0.85 and c.runnable <= 3,
        lambda c: f"one thread runnable in {c.runner:.0%} of the samples",
    ),
    "io_reads": Truth(
        "statements read at least 100 pages per second, and half a thread or more is in pread64 on average",
        lambda c: c.rates["Innodb_buffer_pool_reads"] >= 100 and c.reading >= 0.5,
        lambda c: f"{c.rates['Innodb_buffer_pool_reads']:,.0f} reads/s, {c.reading:.1f} threads in pread",
    ),
    "commit_fsync": Truth(
        "on average, at least 0.15 threads are in fsync or fdatasync",
        lambda c: c.syncing >= 0.15,
        lambda c: f"{c.syncing:.2f} threads in fsync",
    ),
    "redo_too_small": Truth(
        "the redo log is full after less than 75 s of changes",
        lambda c: 75 * c.rates["Innodb_os_log_written"] >= c.redo_capacity,
        lambda c: (
            f"{c.rates['Innodb_os_log_written'] / 1e6:.1f} of {c.redo_capacity / 1e6:,.0f} MB per second"
        ),
    ),
}

#: sysbench options for tables that fit into a buffer pool of 128 MB.
_IN: Final = ("--tables=4", "--table-size=25000")
#: sysbench options for tables that are too large for a buffer pool of 32 MB.
_OUT: Final = ("--tables=4", "--table-size=100000", "--rand-type=uniform")
_LARGE_REDO: Final = ("--innodb-log-file-size=256M",)
_SMALL_POOL: Final = (*_LARGE_REDO, "--innodb-buffer-pool-size=32M", "--innodb-flush-method=O_DIRECT")
_COLUMNS: Final = "a INT AUTO_INCREMENT PRIMARY KEY, b INT DEFAULT 0"
_BINLOG: Final = (*_LARGE_REDO, "--log-bin=binlog", "--server-id=1", "--sync-binlog=1")

_SATURATES: Final = "The clients do not pause, so their threads share the CPUs: only the CPUs limit the load."
_COMMITS: Final = "Each transaction waits for the redo log's fsync, which limits the load if the CPUs do not."
_CALM: Final = "The rate is limited to what the server does easily, so nothing waits for long."


def _sysbench(count: int, *script: str, rate: int = 0) -> Callable[[Server], Sysbench]:
    return lambda server: Sysbench(server, count, script, rate=rate)


def _digits(power: int) -> str:
    """Return the tables of a FROM clause that yields 10 ** ``power`` rows."""
    rows = " UNION ALL ".join(["SELECT 1"] * 10)
    return ", ".join(f"({rows}) d{number}" for number in range(power))


def _grouping(server: Server) -> Repeated:
    make = (f"CREATE TABLE t1 ({_COLUMNS}) SELECT 1 AS c FROM {_digits(4)}",)
    return Repeated(server, 2, ["SELECT a % 100, COUNT(*) FROM t1 GROUP BY 1"], make=make, rate=20)


def _large_transactions(server: Server) -> Repeated:
    make = (f"CREATE TABLE t1 ({_COLUMNS}) SELECT 1 AS c FROM {_digits(4)}",)
    return Repeated(
        server, 1, ["UPDATE t1 SET c = c + 1 WHERE a BETWEEN $R AND $R + 4000"], make=make, among=4000, rate=4
    )


def _partitioned(server: Server) -> Repeated:
    make = (
        f"CREATE TABLE t1 ({_COLUMNS}) PARTITION BY HASH (a) PARTITIONS 64 SELECT 1 AS c FROM {_digits(4)}",
    )
    statements = [
        "SELECT c FROM t1 WHERE a = $R",
        "UPDATE t1 SET c = c + 1 WHERE a = $R",
        "SELECT MAX(c) FROM t1",
    ]
    return Repeated(server, 4, statements, make=make, among=10_000, rate=100)


def _connecting(server: Server) -> Repeated:
    return Repeated(server, 4, ["SELECT 1"], rate=100, reconnect=True)


@contextmanager
def _mostly_idle(server: Server) -> Iterator[None]:
    with ExitStack() as stack:
        stack.enter_context(Idle(server, 400))
        stack.enter_context(Sysbench(server, 4, ("oltp_read_write", *_IN), rate=20))
        yield


def _load(
    name: str,
    what: str,
    load: Callable[[Server], AbstractContextManager[object]],
    why: str,
    *right: str,
    options: tuple[str, ...] = _LARGE_REDO,
) -> Healthy:
    return Healthy(name, what, load, why, right, options)


LOADS: Final = (
    _load("idle", "200 idle connections", lambda s: Idle(s, 200), "Nothing runs."),
    _load(
        "mostly-idle",
        "400 idle connections; 4 clients of oltp_read_write, 20 transactions/s",
        _mostly_idle,
        _CALM,
    ),
    _load("connects", "4 clients run 100 statements/s, each on a new connection", _connecting, _CALM),
    _load(
        "point-select-1",
        "1 client of oltp_point_select, without pause",
        _sysbench(1, "oltp_point_select", *_IN),
        "One client has at most one busy thread. It is idle while the client prepares the next statement.",
    ),
    _load(
        "point-select-16",
        "16 clients of oltp_point_select, without pause",
        _sysbench(16, "oltp_point_select", *_IN),
        _SATURATES,
        "cpu_saturated",
    ),
    _load(
        "point-select-16-calm",
        "16 clients of oltp_point_select, 500 statements/s",
        _sysbench(16, "oltp_point_select", *_IN, rate=500),
        _CALM,
    ),
    _load(
        "read-only-8",
        "8 clients of oltp_read_only, without pause",
        _sysbench(8, "oltp_read_only", *_IN),
        _SATURATES,
        "cpu_saturated",
    ),
    _load(
        "read-only-8-calm",
        "8 clients of oltp_read_only, 20 transactions/s",
        _sysbench(8, "oltp_read_only", *_IN, rate=20),
        _CALM,
    ),
    _load(
        "read-write-4",
        "4 clients of oltp_read_write, without pause",
        _sysbench(4, "oltp_read_write", *_IN),
        f"{_SATURATES} {_COMMITS}",
        "cpu_saturated",
        "commit_fsync",
    ),
    _load(
        "read-write-16",
        "16 clients of oltp_read_write, without pause",
        _sysbench(16, "oltp_read_write", *_IN),
        f"{_SATURATES} {_COMMITS}",
        "cpu_saturated",
        "commit_fsync",
    ),
    _load(
        "read-write-8-calm",
        "8 clients of oltp_read_write, 20 transactions/s",
        _sysbench(8, "oltp_read_write", *_IN, rate=20),
        _CALM,
    ),
    _load(
        "read-write-8-binlog",
        "8 clients of oltp_read_write with a synced binary log, 20 transactions/s",
        _sysbench(8, "oltp_read_write", *_IN, rate=20),
        _CALM,
        options=_BINLOG,
    ),
    _load(
        "update-index-4",
        "4 clients of oltp_update_index, without pause",
        _sysbench(4, "oltp_update_index", *_IN),
        f"{_COMMITS} {_SATURATES}",
        "commit_fsync",
        "cpu_saturated",
    ),
    _load(
        "update-non-index-8",
        "8 clients of oltp_update_non_index, without pause",
        _sysbench(8, "oltp_update_non_index", *_IN),
        f"{_COMMITS} {_SATURATES}",
        "commit_fsync",
        "cpu_saturated",
    ),
    _load(
        "write-only-4-calm",
        "4 clients of oltp_write_only, 30 transactions/s",
        _sysbench(4, "oltp_write_only", *_IN, rate=30),
        _CALM,
    ),
    _load(
        "insert-4",
        "4 clients of oltp_insert, without pause",
        _sysbench(4, "oltp_insert", *_IN),
        f"{_COMMITS} {_SATURATES}",
        "commit_fsync",
        "cpu_saturated",
    ),
    _load(
        "insert-8-relaxed",
        "8 clients of oltp_insert with innodb_flush_log_at_trx_commit=2, 500 statements/s",
        _sysbench(8, "oltp_insert", *_IN, rate=500),
        _CALM,
        options=(*_LARGE_REDO, "--innodb-flush-log-at-trx-commit=2"),
    ),
    _load(
        "bulk-insert-2",
        "2 clients of bulk_insert, without pause",
        _sysbench(2, "bulk_insert"),
        "Each statement is as large as a packet. The redo log is written as fast as the CPUs permit.",
        "cpu_loop",
        "cpu_saturated",
        "redo_too_small",
        "commit_fsync",
    ),
    _load(
        "large-transactions",
        "1 client updates 4,000 rows with each of 4 statements/s",
        _large_transactions,
        _CALM,
    ),
    _load(
        "point-select-8-out",
        "8 clients of oltp_point_select on tables larger than the buffer pool, without pause",
        _sysbench(8, "oltp_point_select", *_OUT),
        "Most statements need a page from the disk. Either the disk or the CPUs limit the load.",
        "io_reads",
        "cpu_saturated",
        options=_SMALL_POOL,
    ),
    _load(
        "read-write-8-out",
        "8 clients of oltp_read_write on tables larger than the buffer pool, 20 transactions/s",
        _sysbench(8, "oltp_read_write", *_OUT, rate=20),
        f"{_CALM} Its busy threads wait for the disk.",
        "io_reads",
        options=_SMALL_POOL,
    ),
    _load(
        "scan-1",
        "1 client scans two tables larger than the buffer pool, with read-ahead",
        lambda s: TableScan(s, 1),
        "One thread scans as fast as it can: it uses a CPU or waits for the disk.",
        "io_reads",
        "cpu_loop",
        options=(*_LARGE_REDO, *TableScan.server_options),
    ),
    _load(
        "group-by-2",
        "2 clients of GROUP BY with an in-memory temporary table, 20 statements/s",
        _grouping,
        _CALM,
    ),
    _load(
        "partitions-4",
        "4 clients read and update a table with 64 partitions, 100 statements/s",
        _partitioned,
        _CALM,
    ),
    _load(
        "random-ranges-4",
        "4 clients of select_random_ranges, without pause",
        _sysbench(4, "select_random_ranges", *_IN),
        _SATURATES,
        "cpu_saturated",
    ),
)
BY_NAME: Final = {load.name: load for load in LOADS}
