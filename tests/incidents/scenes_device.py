"""Define incidents with a slow device or a buffer pool that is too small."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from incidents.device import slow
from incidents.lab import Incident
from workloads import Idle, Readers, Writers
from workloads.clients import Clients, repeating
from workloads.crowd import Crowd

if TYPE_CHECKING:
    from collections.abc import Iterator

    from servers import Server

_DIRECT: Final = ("--innodb-flush-method=O_DIRECT", "--innodb-log-file-size=64M")
_LAZY: Final = (*_DIRECT, "--innodb-flush-log-at-trx-commit=0")
_SMALL: Final = "--innodb-buffer-pool-size=8M"
_LARGE: Final = "--innodb-buffer-pool-size=256M"


def _reading(server: Server) -> Readers:
    return Readers(server, 4, rate=200)


@contextmanager
def _slow_reads(server: Server) -> Iterator[None]:
    with _reading(server), slow(server, reads=40):
        yield


def _committing(server: Server) -> Writers:
    return Writers(server, 4, megabytes=2, rate=40)


@contextmanager
def _slow_commits(server: Server) -> Iterator[None]:
    with _committing(server), slow(server, writes=20):
        yield


@contextmanager
def _ddl(server: Server) -> Iterator[None]:
    """Run a client that creates and drops a table, and one that changes a view, each once per second."""
    create = "CREATE TABLE a1 (a INT PRIMARY KEY) ENGINE=InnoDB"
    tables = [*repeating([create, "DROP TABLE a1"]), "--rate=1"]
    views = [*repeating(["CREATE OR REPLACE VIEW v1 AS SELECT 1"]), "--rate=1"]
    with (
        Idle(server, 5) as idle,
        Clients(server, 1, idle.database, tables) as one,
        Clients(server, 1, idle.database, views) as other,
    ):
        one.check()
        other.check()
        yield


@contextmanager
def _slow_ddl(server: Server) -> Iterator[None]:
    with _ddl(server), slow(server, writes=8):
        yield


@contextmanager
def _crowded(server: Server) -> Iterator[None]:
    with Writers(server, 4, megabytes=64, rate=400), slow(server, writes=200):
        yield


#: Number of concurrent copies, each of which locks all rows of a table.
_COPIES: Final = 15


@contextmanager
def _copies(server: Server, isolation: str) -> Iterator[None]:
    """Run many CREATE TABLE … SELECT at once; each reads the whole table and sleeps at its last row."""
    setup = (f"SET SESSION TRANSACTION ISOLATION LEVEL {isolation}",)
    with Readers(server, 2, megabytes=48, rate=50) as one:
        last = one.sql(f"SELECT MAX(a) FROM {one.database}.t1")[0][0]
        with Crowd(server, _COPIES, one.database, setup) as crowd:
            crowd.send(*(
                f"CREATE TABLE c{number} SELECT a FROM t1 WHERE b < 0 OR (a = {last} AND SLEEP(1000))"
                for number in range(_COPIES)
            ))  # fmt: skip
            one._until(lambda: len(one.listed("STATE = 'User sleep'")) >= _COPIES)
            yield


def _slow_device(name: str, server: str) -> Incident:
    return Incident(
        name,
        server,
        "io_slow",
        _slow_reads,
        _reading,
        options=(*_DIRECT, _SMALL),
        also=("io_throttled",),
        what="4 clients read random rows from a device that is limited to 40 reads/s",
    )


def _free_pages(name: str, server: str) -> Incident:
    return Incident(
        name,
        server,
        "free_pages",
        _crowded,
        _crowded,
        options=(*_LAZY, _SMALL, "--skip-innodb-doublewrite", "--innodb-lru-scan-depth=100"),
        twin_options=(*_LAZY, _LARGE, "--skip-innodb-doublewrite"),
        what="4 clients update random rows of data 8 times as large as the buffer pool, on a slow device",
    )


INCIDENTS = (
    _slow_device("slow-reads-56", "mysql-5.6.24"),
    _slow_device("slow-reads-57", "mysql-5.7.22"),
    _slow_device("slow-reads-80", "mysql-8.0.31"),
    _slow_device("slow-reads-1145", "mariadb-11.4.5"),
    _free_pages("free-pages-56", "mysql-5.6.24"),
    _free_pages("free-pages-57", "mysql-5.7.22"),
    _free_pages("free-pages-80", "mysql-8.0.31"),
    Incident(
        "slow-commits-559",
        "mysql-5.5.9",
        "commit_fsync",
        _slow_commits,
        _committing,
        options=_DIRECT,
        also=("io_throttled",),
        what="4 clients commit, with O_DIRECT, on a device that is limited to 20 writes/s",
    ),
    Incident(
        "slow-ddl-56",
        "mysql-5.6.24",
        "data_fsync",
        _slow_ddl,
        _ddl,
        options=_DIRECT,
        what="2 clients create tables and views, with O_DIRECT, on a device that is limited to 8 writes/s",
    ),
    Incident(
        "free-pages-559",
        "mysql-5.5.9",
        "free_pages",
        _crowded,
        _crowded,
        options=(*_LAZY, _SMALL, "--skip-innodb-doublewrite"),
        twin_options=(*_LAZY, _LARGE, "--skip-innodb-doublewrite"),
        what="4 clients update random rows of data 8 times as large as the buffer pool, on a slow device",
    ),
    Incident(
        "pool-eaten-559",
        "mysql-5.5.9",
        "pool_eaten",
        lambda s: _copies(s, "REPEATABLE READ"),
        lambda s: _copies(s, "READ COMMITTED"),
        options=(_SMALL,),
        what="15 CREATE TABLE … SELECT lock every row that they read; the locks fill the 8 MB buffer pool",
    ),
)
