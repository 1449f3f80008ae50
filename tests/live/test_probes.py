"""Test that after a workload, probe counts match the counts of the server or of bpftrace."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from bpftrace import Independent
from live.watched import Watched
from scale import few
from servers import Server
from waiting import until
from workloads import Fsync, TableScan, UpdateStorm

if TYPE_CHECKING:
    from collections.abc import Iterator

    from servers.launch import Options

#: Servers with symbols, so that InnoDB itself can be probed.
NAMED = ("mysql-5.5.9", "mysql-5.6.24", "mysql-9.7", "mariadb-11.4.5")
TOLERANCE = 0.01
_SYNCS = ("fsync", "fdatasync")


def _compare(probed: float, expected: float, *, least: int, within: float = 2) -> None:
    """Check that the counts agree. They are not read at the same time, so they may differ by ``within``."""
    assert expected >= least, "too few events to compare"
    assert probed == pytest.approx(expected, rel=TOLERANCE, abs=within)


@pytest.fixture(params=few(NAMED, "mysql-5.6.24", reason="a few seconds each on every server"))
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@contextmanager
def _watched(name: str, *families: str, options: Options = ()) -> Iterator[Watched]:
    with Server(name, options=options) as server:
        watched = Watched(server, *families)
        try:
            yield watched
        finally:
            watched.collector.close()


def test_read_ahead_pages_equal_the_servers_counter(name: str) -> None:
    options = ("--innodb-read-ahead-threshold=0",) if name == "mysql-5.5.9" else ()
    with _watched(name, "read_ahead", options=(*TableScan.server_options, *options)) as watched:
        counter = "Innodb_buffer_pool_read_ahead"
        probed, before = watched.together("read_ahead_pages", counter)
        with TableScan(watched.server, 2):
            until(lambda: watched.status(counter) - before > 3000, within_s=120)
        watched.settled(lambda: watched.status(counter))
        probed_later, after = watched.together("read_ahead_pages", counter)
        _compare(probed_later - probed, after - before, least=3000)


def test_flushed_pages_equal_the_servers_counter(name: str) -> None:
    """Use Innodb_pages_written, because Innodb_buffer_pool_pages_flushed omits single-page flushes."""
    counter = "Innodb_pages_written"
    with _watched(name, "flush", options=("--innodb-buffer-pool-size=16M",)) as watched:
        watched.settled(lambda: watched.status(counter))
        probed, before = watched.together("flushed_pages", counter)
        with TableScan(watched.server, 1):  # fills tables that are larger than the pool, then scans them
            pass
        watched.settled(lambda: watched.status(counter))
        probed_later, after = watched.together("flushed_pages", counter)
        _compare(probed_later - probed, after - before, least=1000, within=10)


def test_fsyncs_equal_the_kernels_count(name: str) -> None:
    """Check that the count equals bpftrace's count of calls. Servers count only some of their fsyncs."""
    with _watched(name, "fsync", options=Fsync.server_options) as watched:
        syscalls = [f"tracepoint:syscalls:sys_enter_{call} /pid == {watched.server.pid}/" for call in _SYNCS]
        with Independent(*syscalls) as independent:
            probed = watched.probed("fsync_seconds")  # after bpftrace starts: idle servers also call fsync
            with Fsync(watched.server, 2):
                until(lambda: watched.probed("fsync_seconds") - probed > 500, within_s=120)
            after = watched.settled(lambda: watched.probed("fsync_seconds"))
        _compare(after - probed, independent.count, least=500, within=10)


def test_deadlock_searches_equal_bpftraces_count(name: str) -> None:
    """Check that the count equals bpftrace's. Servers do not count deadlock searches."""
    with _watched(name, "deadlock") as watched:
        searches = [point for point in watched.points() if point.name == "deadlock_search"]
        if not searches:
            assert name in {"mysql-9.7", "mariadb-11.4.5"}  # 9.7 hides the function, MariaDB inlines it
            return
        probed = watched.probed("deadlock_searches")
        with Independent(watched.uprobe(searches[0])) as independent:
            with UpdateStorm(watched.server, 30):
                until(lambda: watched.probed("deadlock_searches") - probed > 500, within_s=120)
            after = watched.settled(lambda: watched.probed("deadlock_searches"))
        _compare(after - probed, independent.count, least=500)


def test_row_lock_waits_equal_bpftraces_count(name: str) -> None:
    """Check that the count equals bpftrace's.

    The server's counter omits calls that find the lock free, which are 2 to 5 % in a storm.
    """
    with _watched(name, "row_lock") as watched:
        [point] = watched.points()
        probed = watched.probed("row_lock_wait_seconds")
        with Independent(watched.uprobe(point)) as independent:
            with UpdateStorm(watched.server, 30):
                until(lambda: watched.probed("row_lock_wait_seconds") - probed > 500, within_s=120)
            after = watched.settled(lambda: watched.probed("row_lock_wait_seconds"))
        _compare(after - probed, independent.count, least=300)


def test_table_opens_equal_bpftraces_count(name: str) -> None:
    """Open sixty tables, and open them again after FLUSH TABLES.

    Compare with bpftrace's count, because Opened_tables includes the tables of other storage engines.
    """
    tables = 60
    with (
        _watched(name, "tables") as watched,
        watched.server.connect() as connection,
        connection.cursor() as cursor,
    ):
        cursor.execute("CREATE DATABASE opens")
        for number in range(tables):
            cursor.execute(f"CREATE TABLE opens.t{number} (a INT PRIMARY KEY) ENGINE=InnoDB")
        cursor.execute("FLUSH TABLES")
        [point] = [point for point in watched.points() if point.name == "table_open"]
        probed = watched.probed("innodb_table_opens")
        with Independent(watched.uprobe(point)) as independent:
            for _ in range(2):
                for number in range(tables):
                    cursor.execute(f"SELECT COUNT(*) FROM opens.t{number}")
                cursor.execute("FLUSH TABLES")
            after = watched.probed("innodb_table_opens")
        _compare(after - probed, independent.count, least=2 * tables)
