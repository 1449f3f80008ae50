"""What the probes count is what happened: against the server's own counters, over a workload that ended."""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from bpftrace import Independent
from innoscope.common.samples import Histogram, by_series
from innoscope.metrics.collectors.probes import ProbesCollector
from innoscope.target.discover import find_one
from live import figures
from scale import few
from servers import Server
from workloads import Fsync, TableScan, UpdateStorm

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from innoscope.probes.attachment import Point
    from servers.launch import Options

#: Of which the functions are named, so that InnoDB itself can be probed.
NAMED = ("mysql-5.5.9", "mysql-5.6.24", "mysql-9.7", "mariadb-11.4.5")
TOLERANCE = 0.01
_SYNCS = ("fsync", "fdatasync")


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

    def points(self) -> list[Point]:
        """The probes that are attached."""
        return self.collector.start_once().attachment.points

    def uprobe(self, point: Point) -> str:
        """bpftrace's name for the place of a probe, with a filter."""
        [place] = point.placed.places
        pid = self.server.pid
        return f"uprobe:/proc/{pid}/root{self._path()}:{place.symbol} /pid == {pid}/"

    def _path(self) -> str:
        target = find_one(self.server.pid)
        return target.executable.removeprefix(target.root if target.root != "/" else "")

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
    figures.record(
        "truth", f"{name}/{what}", f"probes {probed:,.0f}, server {told:,.0f}", probed=probed, told=told
    )
    assert told >= least, "the workload did not do it often enough to tell"
    assert probed == pytest.approx(told, rel=TOLERANCE, abs=within)


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


def test_pages_read_ahead(name: str) -> None:
    options = ("--innodb-read-ahead-threshold=0",) if name == "mysql-5.5.9" else ()
    with _watched(name, "read_ahead", options=(*TableScan.server_options, *options)) as watched:
        counter = "Innodb_buffer_pool_read_ahead"
        probed, told = watched.probed("read_ahead_pages"), watched.told(counter)
        with TableScan(watched.server, 2) as load:
            _until(lambda: watched.told(counter) - told > 3000)
            del load
        after = watched.settled(lambda: watched.told(counter))
        _compare(
            name, "pages read ahead", watched.probed("read_ahead_pages") - probed, after - told, least=3000
        )


def test_flushed_pages(name: str) -> None:
    """Of all kinds: Innodb_buffer_pool_pages_flushed leaves out what threads flush one by one."""
    counter = "Innodb_pages_written"
    with _watched(name, "flush", options=("--innodb-buffer-pool-size=16M",)) as watched:
        watched.settled(lambda: watched.told(counter))
        probed, told = watched.probed("flushed_pages"), watched.told(counter)
        with TableScan(watched.server, 1):  # its preparation fills tables larger than the pool
            pass
        after = watched.settled(lambda: watched.told(counter))
        _compare(
            name,
            "flushed pages",
            watched.probed("flushed_pages") - probed,
            after - told,
            least=1000,
            within=10,
        )


def test_fsyncs(name: str) -> None:
    """The kernel's own count: servers count some of theirs only."""
    with _watched(name, "fsync", options=Fsync.server_options) as watched:
        syscalls = [f"tracepoint:syscalls:sys_enter_{call} /pid == {watched.server.pid}/" for call in _SYNCS]
        with Independent(*syscalls) as independent:
            probed = watched.probed("fsync_seconds")  # now: the server has some of its own at all times
            with Fsync(watched.server, 2):
                _until(lambda: watched.probed("fsync_seconds") - probed > 500)
            after = watched.settled(lambda: watched.probed("fsync_seconds"))
        _compare(name, "fsyncs", after - probed, independent.count, least=500, within=10)


def test_deadlock_searches(name: str) -> None:
    """bpftrace on the same function: servers do not count them."""
    with _watched(name, "deadlock") as watched:
        searches = [point for point in watched.points() if point.name == "deadlock_search"]
        if not searches:
            assert name in {"mysql-9.7", "mariadb-11.4.5"}  # a background thread's, hidden; inlined
            return
        probed = watched.probed("deadlock_searches")
        with Independent(watched.uprobe(searches[0])) as independent:
            with UpdateStorm(watched.server, 30) as load:
                _until(lambda: load.throughput() > 3000)
            after = watched.settled(lambda: watched.probed("deadlock_searches"))
        _compare(name, "deadlock searches", after - probed, independent.count, least=500)


def test_row_lock_waits(name: str) -> None:
    """The calls: the server's counter leaves out those that find the lock free, 2 to 5 % in a storm."""
    with _watched(name, "row_lock") as watched:
        [point] = watched.points()
        probed = watched.probed("row_lock_wait_seconds")
        with Independent(watched.uprobe(point)) as independent:
            with UpdateStorm(watched.server, 30) as load:
                _until(lambda: load.throughput() > 3000)
            after = watched.settled(lambda: watched.probed("row_lock_wait_seconds"))
        _compare(name, "row-lock waits", after - probed, independent.count, least=300)


def test_table_opens(name: str) -> None:
    """Sixty tables opened once each, and again after FLUSH TABLES; Opened_tables has other engines' too."""
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
        _compare(name, "table opens", after - probed, independent.count, least=2 * tables)


def _until(met: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120
    while not met():
        assert time.monotonic() < deadline
        time.sleep(0.05)
