"""What the probes count is what happened: against the server's own counters, over a workload that has ended."""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from innoscope.collectors.probes import ProbesCollector
from innoscope.metrics.model import Histogram, by_series
from innoscope.target.discover import find_one
from live import figures
from live.bpftrace import Independent
from servers import Server
from workloads import Fsync, TableScan, UpdateStorm

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from servers.launch import Options

#: Of which the functions are named, so that InnoDB itself can be probed.
NAMED = ("mysql-5.5.9", "mysql-5.6.24", "mysql-9.7", "mariadb-11.4.5")
TOLERANCE = 0.01
_SYNCS = ("fsync", "fdatasync")
_SEARCHES = {
    "mysql-5.5.9": "lock_deadlock_occurs",
    "mysql-5.6.24": "_Z31lock_deadlock_check_and_resolvePK9ib_lock_tPK5trx_t",
    "mariadb-11.4.5": "_ZN10lock_sys_t14deadlock_checkEv",
}


class Watched:
    """A server with probes on it; ``difference`` says what both counted while something went on."""

    def __init__(self, server: Server, *families: str) -> None:
        self.server = server
        # No budget: these tests compare counts, the budget has its own.
        self.collector = ProbesCollector(find_one(server.pid), families=frozenset(families), budget=1.0)
        self.collector.start()

    def probed(self, metric: str) -> float:
        """The sum over the metric's labels."""
        series = by_series(self.collector.collect())
        values = [value for (name, _), value in series.items() if name == metric]
        return sum(value.count if isinstance(value, Histogram) else value for value in values)

    def told(self, *variables: str) -> int:
        """The sum of these status variables."""
        with self.server.connect() as connection, connection.cursor() as cursor:
            names = ", ".join(f"'{name}'" for name in variables)
            cursor.execute(f"SHOW GLOBAL STATUS WHERE Variable_name IN ({names})")
            return sum(int(value) for _, value in cursor.fetchall())

    def settled(self, read: Callable[[], float]) -> float:
        """The value once it stands still: background threads go on for a while."""
        last, since = read(), time.monotonic()
        deadline = since + 60
        while time.monotonic() - since < 1.5:
            assert time.monotonic() < deadline, "the server does not come to rest"
            time.sleep(0.1)
            now = read()
            if now != last:
                last, since = now, time.monotonic()
        return last


def _compare(name: str, what: str, probed: float, told: float, *, least: int, within: float = 2) -> None:
    """``within`` counts are forgiven: the edges of the two readings."""
    figures.record("truth", f"{name}/{what}", f"probes {probed:,.0f}, server {told:,.0f}", probed=probed, told=told)
    assert told >= least, "the workload did not do it often enough to tell"
    assert probed == pytest.approx(told, rel=TOLERANCE, abs=within)


@pytest.fixture(params=NAMED)
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


def test_pages_read_ahead(name: str) -> None:
    options = ("--innodb-read-ahead-threshold=0",) if name == "mysql-5.5.9" else ()
    with _watched(name, "read_ahead", options=(*TableScan.server_options, *options)) as watched:
        counter = "Innodb_buffer_pool_read_ahead"
        probed, told = watched.probed("read_ahead_pages"), watched.told(counter)
        with TableScan(watched.server, 2) as load:
            _until(lambda: watched.told(counter) - told > 3000)
            del load
        after = watched.settled(lambda: watched.told(counter))
        _compare(name, "pages read ahead", watched.probed("read_ahead_pages") - probed, after - told, least=3000)


def test_flushed_pages(name: str) -> None:
    counter = "Innodb_buffer_pool_pages_flushed"
    with _watched(name, "flush", options=("--innodb-buffer-pool-size=16M",)) as watched:
        watched.settled(lambda: watched.told(counter))
        probed, told = watched.probed("flushed_pages"), watched.told(counter)
        with TableScan(watched.server, 1):  # its preparation fills tables larger than the pool
            pass
        after = watched.settled(lambda: watched.told(counter))
        _compare(name, "flushed pages", watched.probed("flushed_pages") - probed, after - told, least=1000, within=10)


def test_fsyncs(name: str) -> None:
    """The kernel's own count: servers count some of theirs only."""
    with _watched(name, "fsync", options=Fsync.server_options) as watched:
        syscalls = [f"tracepoint:syscalls:sys_enter_{call} /pid == {watched.server.pid}/" for call in _SYNCS]
        probed = watched.probed("fsync_seconds")
        with Independent(*syscalls) as independent:
            with Fsync(watched.server, 2):
                _until(lambda: watched.probed("fsync_seconds") - probed > 500)
            after = watched.settled(lambda: watched.probed("fsync_seconds"))
        _compare(name, "fsyncs", after - probed, independent.count, least=500, within=10)


def test_deadlock_searches(name: str) -> None:
    """bpftrace on the function that probes.yaml does not name anywhere else."""
    if name not in _SEARCHES:
        pytest.skip("a background thread searches; its functions are hidden")
    with _watched(name, "deadlock") as watched:
        symbol = f"uprobe:{watched.server.installation.mysqld}:{_SEARCHES[name]} /pid == {watched.server.pid}/"
        probed = watched.probed("deadlock_searches")
        with Independent(symbol) as independent:
            with UpdateStorm(watched.server, 30):
                _until(lambda: watched.probed("deadlock_searches") - probed > 2000)
            after = watched.settled(lambda: watched.probed("deadlock_searches"))
        _compare(name, "deadlock searches", after - probed, independent.count, least=2000)


def test_row_lock_waits(name: str) -> None:
    counter = "Innodb_row_lock_waits"
    with _watched(name, "row_lock") as watched:
        probed, told = watched.probed("row_lock_wait_seconds"), watched.told(counter)
        with UpdateStorm(watched.server, 30) as load:
            _until(lambda: load.throughput() > 3000)
        after = watched.settled(lambda: watched.told(counter))
        _compare(name, "row-lock waits", watched.probed("row_lock_wait_seconds") - probed, after - told, least=300)


def test_table_opens(name: str) -> None:
    """Sixty tables opened once each, and again after FLUSH TABLES."""
    tables = 60
    with _watched(name, "tables") as watched, watched.server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("CREATE DATABASE opens")
        for number in range(tables):
            cursor.execute(f"CREATE TABLE opens.t{number} (a INT PRIMARY KEY) ENGINE=InnoDB")
        cursor.execute("FLUSH TABLES")
        probed, told = watched.probed("innodb_table_opens"), watched.told("Opened_tables")
        for _ in range(2):
            for number in range(tables):
                cursor.execute(f"SELECT COUNT(*) FROM opens.t{number}")
            cursor.execute("FLUSH TABLES")
        probed, told = watched.probed("innodb_table_opens") - probed, watched.told("Opened_tables") - told
        _compare(name, "table opens", probed, told, least=2 * tables)


def _until(met: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120
    while not met():
        assert time.monotonic() < deadline
        time.sleep(0.05)
