"""Define incidents in which an operation on the whole buffer pool makes all other threads wait."""

from __future__ import annotations

import contextlib
import threading
from functools import partial
from typing import TYPE_CHECKING, Final

import pymysql

from incidents.lab import Incident
from incidents.table_filling import doubled
from workloads import Readers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pymysql.cursors import Cursor

    from servers import Server

_CLIENTS: Final = 8
_SIZES: Final = (1 << 30, 4 << 30)
#: Options for a large pool. A resize initializes all blocks, even those that never held a page, so the pool
#: need not be filled.
_POOL: Final = (f"--innodb-buffer-pool-size={_SIZES[-1]}", "--innodb-buffer-pool-instances=1")
#: Seconds between rounds of attempts to resize the pool.
_AGAIN_S: Final = 0.02
#: Options for a pool of 98,304 pages, from which nothing is flushed. Without the adaptive hash index, each
#: read of a row acquires the pool's mutex.
_FULL: Final = (
    "--innodb-buffer-pool-size=1536M",
    "--innodb-log-file-size=256M",
    "--innodb-max-dirty-pages-pct=99",
    "--innodb-adaptive-flushing=0",
    "--innodb-adaptive-hash-index=0",
    "--innodb-flush-log-at-trx-commit=0",
    "--innodb-flush-method=nosync",
    "--innodb-doublewrite=0",
    "--sync-frm=0",
    "--innodb-file-per-table",
    "--innodb-file-format=Barracuda",
)
_COLUMNS: Final = 40
#: Number of columns that InnoDB stores on separate pages, so that the rest of a row fits into half a
#: page.
_PAGES: Final = 31
#: Number of such pages in the table that fills the pool.
_FILLED: Final = 90_000
#: Number of tables to drop.
_TABLES: Final = 3
#: Number of partitions per table. DROP TABLE drops the partitions one by one.
_PARTITIONS: Final = 200


def _reading(server: Server) -> Readers:
    """Read rows of a table in the buffer pool, at a limited rate."""
    return Readers(server, _CLIENTS, megabytes=8, rate=400)


@contextlib.contextmanager
def _while_resizing(server: Server) -> Iterator[None]:
    """Read rows while another client keeps resizing the buffer pool."""
    with _reading(server), _another_client(server, _resize):
        yield


@contextlib.contextmanager
def _another_client(server: Server, work: Callable[[Cursor, threading.Event], None]) -> Iterator[None]:
    """Run ``work`` on another connection. The event, which tells it to return, is set when the block ends."""
    ended = threading.Event()
    with contextlib.closing(server.connect()) as connection, connection.cursor() as cursor:
        thread = threading.Thread(target=work, args=(cursor, ended))
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()


def _resize(cursor: Cursor, ended: threading.Event) -> None:
    while not ended.wait(_AGAIN_S):
        for size in _SIZES:
            with contextlib.suppress(pymysql.err.MySQLError):  # the previous resize is not complete
                cursor.execute(f"SET GLOBAL innodb_buffer_pool_size = {size}")


def _fill(server: Server) -> None:
    """Fill the buffer pool with the pages of one table."""
    columns = [f"c{number}" for number in range(_COLUMNS)]
    types = ", ".join(f"{column} BLOB" for column in columns)
    values = ", ".join(["REPEAT('x', 800)"] * _COLUMNS)
    server.sql(
        "CREATE DATABASE lab",
        f"CREATE TABLE lab.large ({types}) ENGINE=InnoDB ROW_FORMAT=DYNAMIC",
        *doubled("lab.large", ", ".join(columns), values, _FILLED // _PAGES),
    )


@contextlib.contextmanager
def _while_dropping(server: Server, *, own_files: bool) -> Iterator[None]:
    """Read rows while another client drops partitioned tables.

    DROP TABLE searches the buffer pool for the pages of each partition that has its own file.
    """
    partitions = f"PARTITION BY HASH (a) PARTITIONS {_PARTITIONS}"
    server.sql(
        f"SET GLOBAL innodb_file_per_table = {int(own_files)}",
        *(f"CREATE TABLE lab.t{number} (a INT) ENGINE=InnoDB {partitions}" for number in range(_TABLES)),
    )
    with _reading(server), _another_client(server, _drop):
        yield


def _drop(cursor: Cursor, ended: threading.Event) -> None:
    for number in range(_TABLES):
        if ended.is_set():
            return
        cursor.execute(f"DROP TABLE lab.t{number}")


def _resizing(name: str, server: str) -> Incident:
    return Incident(
        name,
        server,
        "pool_scan",
        _while_resizing,
        _reading,
        options=_POOL,
        what="8 clients read rows while another keeps resizing the buffer pool between 1 GB and 4 GB",
    )


INCIDENTS = (
    _resizing("pool-resize-57", "mysql-5.7.22"),
    _resizing("pool-resize-80", "mysql-8.0.31"),
    Incident(
        "drop-table-559",
        "mysql-5.5.9",
        "pool_scan",
        partial(_while_dropping, own_files=True),
        partial(_while_dropping, own_files=False),
        options=_FULL,
        setup=_fill,
        what="8 clients read rows, and another drops tables with 200 partitions; the buffer pool is 1.5 GB",
    ),
)
