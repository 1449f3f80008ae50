"""Define incidents with MariaDB's thread pool."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Final

import pymysql

from incidents.lab import Incident
from waiting import until
from workloads.crowd import Crowd

if TYPE_CHECKING:
    from collections.abc import Iterator

    from servers import Server

_THREADS: Final = 4
_POOL: Final = ("--thread-handling=pool-of-threads", "--thread-pool-size=1")
_FULL: Final = (*_POOL, f"--thread-pool-max-threads={_THREADS}")
_ROOMY: Final = (*_POOL, "--thread-pool-max-threads=100")
_DATABASE: Final = "lab"


def _database(server: Server) -> None:
    server.sql(f"CREATE DATABASE {_DATABASE}")


@contextlib.contextmanager
def _sleeping(server: Server) -> Iterator[None]:
    """Occupy each thread of the small pool with a SELECT SLEEP, then send more statements."""
    with Crowd(server, _THREADS, _DATABASE) as sleepers, Crowd(server, 8, _DATABASE) as others:
        _occupy(server, sleepers, "SELECT SLEEP(1000)", "User sleep")
        others.send("SELECT 1")
        yield


@contextlib.contextmanager
def _locked(server: Server) -> Iterator[None]:
    """Make all threads of the small pool wait for a row lock; the lock owner's COMMIT is then queued."""
    server.sql(
        f"CREATE TABLE {_DATABASE}.t1 (a INT PRIMARY KEY, b INT) ENGINE=InnoDB",
        f"INSERT INTO {_DATABASE}.t1 VALUES (1, 0)",
    )
    hold = ("BEGIN", "UPDATE t1 SET b = b + 1")
    wait = ("SET SESSION innodb_lock_wait_timeout = 1000",)
    with Crowd(server, 1, _DATABASE, hold) as owner, Crowd(server, _THREADS, _DATABASE, wait) as waiters:
        _occupy(server, waiters, "UPDATE t1 SET b = b + 1 WHERE a = 1", "Updating")
        owner.send("COMMIT")
        yield


def _occupy(server: Server, crowd: Crowd, statement: str, state: str) -> None:
    """Send the statement on all connections; wait until all execute it or the server hangs."""
    listed = f"SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE STATE = '{state}'"
    with contextlib.closing(server.connect(read_timeout=2)) as monitor, monitor.cursor() as cursor:
        crowd.send(statement)

        def occupied() -> bool:
            try:
                cursor.execute(listed)
            except pymysql.err.OperationalError:  # no thread of the pool is free
                return True
            [(count,)] = cursor.fetchall()
            return bool(count == _THREADS)

        until(occupied)


INCIDENTS = (
    Incident(
        "thread-pool-sleep-1011",
        "mariadb-10.11",
        "thread_pool_stuck",
        _sleeping,
        _sleeping,
        setup=_database,
        options=_FULL,
        twin_options=_ROOMY,
        what="4 SELECT SLEEP occupy all 4 threads of the thread pool, and 8 other statements queue",
    ),
    Incident(
        "thread-pool-locks-1011",
        "mariadb-10.11",
        "thread_pool_stuck",
        _locked,
        _locked,
        setup=_database,
        options=_FULL,
        twin_options=_ROOMY,
        what="4 UPDATEs that wait for a row occupy the whole thread pool; the lock holder's COMMIT is queued",
    ),
)
