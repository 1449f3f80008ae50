"""Test the effects of setting and undoing toggles with the toggle engine, on servers under load."""

from __future__ import annotations

import re
import time
from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pymysql
import pytest
from pymysql.constants.COMMAND import COM_QUERY

from live.changing import TOO_MANY_CONNECTIONS, Changer, connected, fill, shown
from live.dirty import POOL_PAGES, SMALL_POOL, DirtyPages
from scale import few, long
from servers import ADDED, NAMES, Server, ensure_packages
from workloads import TableScan, UpdateStorm

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from workloads import Workload

#: Servers that can disable deadlock detection; on the others the toggle is refused (docs/toggles-table.md).
DETECTING = few(
    ("mysql-5.7.22", "mysql-8.0.31", "mysql-9.7", "mariadb-10.5", "mariadb-10.11", "mariadb-11.4.5"),
    "mysql-9.7", "mariadb-10.11", "mariadb-11.4.5",
    reason="the other versions behave in the same way",
)  # fmt: skip
#: Servers that count this load's spin rounds: MariaDB counts none, and 9.7 only those of read-write locks.
COUNTING_ROUNDS = ("mysql-5.5.9", "mysql-5.6.24")
#: All servers. The quick suite uses only a few, because test_toggle_sql.py sets every toggle on more of them.
EVERY = (*NAMES, *ADDED)
ONE = few(EVERY, "mysql-5.6.24", reason="the effect is shown on one server")
ONE_OF_EACH = few(EVERY, "mysql-5.6.24", "mariadb-11.4.5", reason="one server of each flavour")
DEADLOCK, TIMEOUT = 1213, 1205
PATIENCE_S = 60
#: Number of pages to read between disabling read-ahead and checking that it has stopped: more than an extent,
#: because the read-ahead of an extent may still be in flight.
ON_ITS_WAY = 200
#: Number of pages in each of TableScan's tables, which are 1.5 times as large as the pool.
TABLE_PAGES = 3 * POOL_PAGES // 2
_SPINS = re.compile(r"^(?:Mutex spin waits|RW-\w+ spins) (\d+), rounds (\d+)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Changed:
    """A server, and a toggle engine for it."""

    server: Server
    changer: Changer


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Changed]]:
    """Yield a function that starts the named server on first use, with a small buffer pool."""
    ensure_packages(["gdb"])
    with ExitStack() as stack:
        started: dict[str, Changed] = {}

        def one(name: str) -> Changed:
            if name not in started:
                server = stack.enter_context(Server(name, options=SMALL_POOL))
                started[name] = Changed(server, Changer(server, tmp_path_factory.mktemp("toggles")))
            return started[name]

        yield one


@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_read_ahead_stops_and_resumes(small: Callable[[str], Changed], name: str) -> None:
    """Check that no page is read ahead during two scans of both tables while the toggle is off."""
    one = small(name)
    with TableScan(one.server, 1) as scan:
        assert until(lambda: read_ahead(scan) > 0)
        entry = one.changer.set("read_ahead", "off")
        begun = read(scan)
        assert until(lambda: read(scan) > begun + ON_ITS_WAY)
        still, begun = read_ahead(scan), read(scan)
        assert until(lambda: read(scan) - begun > 4 * TABLE_PAGES)
        assert read_ahead(scan) == still
        one.changer.undo(entry)
        assert until(lambda: read_ahead(scan) > still)


@pytest.mark.parametrize("name", few(EVERY, *NAMES, reason="the other versions behave in the same way"))
def test_full_server_gets_more_connections_by_memory(small: Callable[[str], Changed], name: str) -> None:
    """Raise max_connections in memory while no login is possible, and then undo the change."""
    one = small(name)
    few = one.changer.set("max_connections", "10")
    with ExitStack() as crowd:
        fill(crowd, one.server)
        entry = one.changer.set("max_connections", "50")
        assert entry.backend == "memory"
        assert shown(one.server, ["max_connections"]) == [50]
        one.changer.undo(entry)
        assert not logs_in(one.server)
    assert until(lambda: is_unused(one.server))
    one.changer.undo(few)
    assert shown(one.server, ["max_connections"]) == [2500]


@pytest.mark.parametrize("name", DETECTING)
def test_deadlocks_time_out_without_detection(small: Callable[[str], Changed], name: str) -> None:
    one = small(name)
    assert deadlock(one.server, 50) == [0, DEADLOCK]
    with one.changer.changed("deadlock_detection", "off"):
        assert deadlock(one.server, 1) == [TIMEOUT, TIMEOUT]
    assert deadlock(one.server, 50) == [0, DEADLOCK]


@pytest.mark.parametrize("name", COUNTING_ROUNDS)
def test_spin_rounds_changes_the_rounds_per_wait(small: Callable[[str], Changed], name: str) -> None:
    one = small(name)
    # The load begins after the change: a thread that was preempted while it spun could add its rounds later.
    with one.changer.changed("spin_rounds", "0"), UpdateStorm(one.server, 100) as storm:
        none = rounds_per_wait(storm)
    with one.changer.changed("spin_rounds", "300"), UpdateStorm(one.server, 100) as storm:
        many = rounds_per_wait(storm)
    assert none == 0
    assert many > none


@long("io_capacity shows flushing in make test")
@pytest.mark.parametrize("name", ONE)
def test_dirty_pages_fall_below_their_limit(small: Callable[[str], Changed], name: str) -> None:
    one = small(name)
    with DirtyPages(one.server) as pages:
        before = pages.stained()
        pages.keep_busy(lambda: False, 1)
        stayed = pages.now()
        with one.changer.changed("dirty_page_limit", "5"):
            assert pages.keep_busy(lambda: pages.share() <= 6, PATIENCE_S)
            sunk = pages.now()
        assert stayed > sunk, f"{before} dirty pages before"
        assert pages.stained() > sunk


@pytest.mark.parametrize("name", ONE)
def test_io_capacity_limits_the_flushing_rate(small: Callable[[str], Changed], name: str) -> None:
    """Check that pages are written slowly with an io_capacity of 100, and immediately with a large one."""
    one = small(name)
    with DirtyPages(one.server) as pages:
        with one.changer.changed("io_capacity", "100"):
            pages.stained()
            slow = pages.flushed_per_second(2)
            left = pages.now()
        fast = 0.0
        with one.changer.changed("io_capacity", "20000"):
            for _ in range(3):  # on a busy host, a single rate may be too low
                pages.stained()
                fast = max(fast, pages.flushed_per_second(PATIENCE_S))
    assert left > 0, "all pages were written, so the rate was not limited"
    assert fast > slow


def deadlock(server: Server, timeout_s: int) -> list[int]:
    """Make two transactions wait for each other's row; return the error number of each, or 0 for success."""
    with ExitStack() as stack:
        admin, *two = (stack.enter_context(closing(server.connect())) for _ in range(3))
        execute(admin, "CREATE DATABASE rows_of_two")
        execute(admin, "CREATE TABLE rows_of_two.t (a INT PRIMARY KEY, b INT) ENGINE=InnoDB")
        execute(admin, "INSERT INTO rows_of_two.t VALUES (1, 0), (2, 0)")
        for row, connection in enumerate(two, 1):
            execute(connection, f"SET SESSION innodb_lock_wait_timeout = {timeout_s}")
            execute(connection, "BEGIN")
            execute(connection, f"UPDATE rows_of_two.t SET b = 1 WHERE a = {row}")
        for connection, row in zip(two, (2, 1), strict=True):
            send: Any = connection._execute_command  # type: ignore[attr-defined]
            send(COM_QUERY, f"UPDATE rows_of_two.t SET b = 2 WHERE a = {row}")
        errors = sorted(map(outcome, two))
        for connection in two:
            connection.rollback()
        execute(admin, "DROP DATABASE rows_of_two")
        return errors


def outcome(connection: Any) -> int:
    try:
        connection._read_query_result()
    except pymysql.MySQLError as error:
        return int(error.args[0])
    return 0


def execute(connection: Any, statement: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(statement)


def rounds_per_wait(load: Workload) -> float:
    """Return the spin rounds per wait over 50 waits. First skip 20 waits, which may have begun earlier."""
    wait_for = spins(load)[0] + 20
    assert until(lambda: spins(load)[0] >= wait_for)
    waits, rounds = spins(load)
    assert until(lambda: spins(load)[0] >= waits + 50)
    more_waits, more_rounds = spins(load)
    return (more_rounds - rounds) / (more_waits - waits)


def spins(load: Workload) -> tuple[int, int]:
    """Return (waits, rounds) of mutexes and read-write locks since the server's start."""
    found = _SPINS.findall(load.sql("SHOW ENGINE INNODB STATUS")[0][2])
    assert found
    waits, rounds = (sum(map(int, numbers)) for numbers in zip(*found, strict=True))
    return waits, rounds


def read_ahead(scan: TableScan) -> int:
    return int(scan.sql("SHOW GLOBAL STATUS LIKE 'Innodb_buffer_pool_read_ahead'")[0][1])


def read(scan: TableScan) -> int:
    return int(scan.sql("SHOW GLOBAL STATUS LIKE 'Innodb_pages_read'")[0][1])


def logs_in(server: Server) -> bool:
    try:
        server.connect().close()
    except pymysql.err.OperationalError as error:
        assert error.args[0] == TOO_MANY_CONNECTIONS  # noqa: PT017
        return False
    return True


def is_unused(server: Server) -> bool:
    """Return whether the server has ended all earlier connections."""
    try:
        with closing(server.connect()) as connection:
            return connected(connection) == 1
    except pymysql.err.OperationalError as error:
        assert error.args[0] == TOO_MANY_CONNECTIONS  # noqa: PT017
        return False


def until(reached: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + PATIENCE_S
    while not reached():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True
