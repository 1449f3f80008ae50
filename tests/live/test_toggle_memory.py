"""One number written into a live server's memory, with SQL and the server's own counters as witnesses."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Any

import pymysql
import pytest

from innoscope.target.discover import find_one
from innoscope.toggles.memoryway import MemoryWriter
from innoscope.toggles.model import Assignment, Setting, Step, Way
from live import figures
from servers import NAMES, Server
from workloads import TableScan

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

SMALL_POOL = {"innodb_buffer_pool_size": "16M", "innodb_flush_method": "O_DIRECT"}
MAX_CONNECTIONS = Setting("max_connections", "unsigned", 8, (1, 100_000))
#: The stripped server hides InnoDB's names, and its own table of variables has them.
SPIN_ROUNDS = Setting(
    "srv_n_spin_wait_rounds", "unsigned", 8, (0, 100_000), variable="innodb_sync_spin_loops"
)
READ_AHEAD_OFF = Setting("srv_startup_is_before_trx_rollback_phase", "unsigned", 8, (0, 1))
TOO_MANY_CONNECTIONS = 1040
PATIENCE_S = 60


@pytest.fixture(scope="module", params=NAMES)
def small(request: pytest.FixtureRequest) -> Iterator[Server]:
    """Each server with a small pool and room for few clients."""
    with Server(request.param, options={**SMALL_POOL, "max_connections": "10"}) as server:
        yield server


@pytest.fixture
def writer(small: Server) -> Iterator[MemoryWriter]:
    with MemoryWriter(find_one(pid=small.pid)) as writer:
        yield writer


def prepare(writer: MemoryWriter, setting: Setting, value: int) -> Step:
    [step] = writer.prepare(Way("memory", (Assignment(setting),)), [value])
    return step


def back(step: Step) -> Step:
    return Step(step.setting, step.new, step.old, step.address, step.size, step.type, step.origin)


def ask(server: Server, statement: str) -> Any:
    with contextlib.closing(server.connect()) as connection, connection.cursor() as cursor:
        cursor.execute(statement)
        return cursor.fetchall()[0][-1]


@pytest.mark.parametrize(
    ("setting", "variable"),
    [(MAX_CONNECTIONS, "max_connections"), (SPIN_ROUNDS, "innodb_sync_spin_loops")],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_written_and_seen_over_sql_and_put_back(
    small: Server, writer: MemoryWriter, setting: Setting, variable: str
) -> None:
    before = ask(small, f"SELECT @@GLOBAL.{variable}")

    step = prepare(writer, setting, 77)
    assert step.old == before == writer.read(step)
    began = time.perf_counter()
    writer.write(step)
    seconds = time.perf_counter() - began

    assert writer.read(step) == 77 == ask(small, f"SELECT @@GLOBAL.{variable}")
    writer.write(back(step))
    assert writer.read(step) == before == ask(small, f"SELECT @@GLOBAL.{variable}")
    figures.record(
        "toggle by memory",
        f"{small.name} {variable}",
        f"{before} → 77 → {before}, {step.size} bytes {step.type} by {step.origin}, {seconds * 1000:.1f} ms",
    )


def test_locked_out_and_rescued(small: Server, writer: MemoryWriter) -> None:
    """No login is possible, and no SQL: room is made in memory, and taken away again."""
    step = prepare(writer, MAX_CONNECTIONS, 50)
    with contextlib.ExitStack() as crowd:

        def fill() -> int:
            """Connect until the server refuses. The one more that it keeps for root is taken, too."""
            while True:
                try:
                    crowd.enter_context(contextlib.closing(small.connect()))
                except pymysql.err.OperationalError as error:
                    return int(error.args[0])

        assert fill() == TOO_MANY_CONNECTIONS
        writer.write(step)
        assert ask(small, "SELECT @@GLOBAL.max_connections") == 50
        writer.write(back(step))
        assert fill() == TOO_MANY_CONNECTIONS
    assert until(lambda: logs_in(small))
    assert ask(small, "SELECT @@GLOBAL.max_connections") == 10


def test_read_ahead_stands_still_and_moves_again() -> None:
    """The famous flag where it is safe, and the only full way: through two scans not one page read ahead."""
    with (
        Server("mysql-5.5.9", options=SMALL_POOL) as server,
        TableScan(server, 1) as scan,
        MemoryWriter(find_one(pid=server.pid)) as writer,
    ):
        assert until(lambda: read_ahead(scan) > 0)
        step = prepare(writer, READ_AHEAD_OFF, 1)
        assert step.old == 0
        writer.write(step)
        two_scans = 4 * pages(scan)
        begun = read(scan)
        assert until(lambda: read(scan) > begun + 8)  # what was on its way has come
        still, begun = read_ahead(scan), read(scan)
        assert until(lambda: read(scan) - begun > two_scans)
        assert read_ahead(scan) == still
        writer.write(back(step))
        assert until(lambda: read_ahead(scan) > still)
        figures.record(
            "read-ahead by memory",
            server.name,
            f"off: {read(scan) - begun:,} pages read, none ahead; on again: {read_ahead(scan) - still:,}",
        )


def pages(scan: TableScan) -> int:
    """Pages of the smaller table, about."""
    rows: Sequence[Any] = scan.sql(
        "SELECT MIN(data_length) DIV 16384 FROM information_schema.tables "
        f"WHERE table_schema = '{scan.database}'"
    )
    return int(rows[0][0])


def read_ahead(scan: TableScan) -> int:
    return int(scan.sql("SHOW GLOBAL STATUS LIKE 'Innodb_buffer_pool_read_ahead'")[0][1])


def read(scan: TableScan) -> int:
    return int(scan.sql("SHOW GLOBAL STATUS LIKE 'Innodb_pages_read'")[0][1])


def logs_in(server: Server) -> bool:
    try:
        server.connect().close()
    except pymysql.err.OperationalError:
        return False
    return True


def until(reached: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + PATIENCE_S
    while not reached():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True
