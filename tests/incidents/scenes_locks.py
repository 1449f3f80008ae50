"""Define incidents with deadlock searches, the table cache, the history list and the privilege cache."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING

from incidents.lab import Incident
from incidents.table_filling import doubled
from workloads import Burn, Idle, Repeated, WorkloadError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from servers import Server

#: Options that make commits fast, and make INSERT … SELECT assign ids without gaps.
_FAST = ("--innodb-flush-log-at-trx-commit=0", "--innodb-autoinc-lock-mode=0")
_TABLES = 2_000
_ROWS = 10_000
_ACCOUNTS = 60_000
#: Length of the history list to wait for.
_HISTORY = 25_000
#: Minimum seconds to wait for the history list to grow.
_OLD_S = 8
#: Maximum seconds to wait for the history list to grow.
_WITHIN_S = 60


def _updates(server: Server, count: int, where: str, rate: int = 0) -> Repeated:
    """Run updates of single rows of a large table."""
    make = (
        "CREATE TABLE t1 (a INT AUTO_INCREMENT PRIMARY KEY, b INT) ENGINE=InnoDB",
        *doubled("t1", "b", "0", _ROWS),
    )
    statement = f"UPDATE t1 SET b = b + 1 WHERE a = {where}"
    return Repeated(server, count, [statement], make=make, among=_ROWS, rate=rate)


def _paced_updates(server: Server) -> Repeated:
    """Run updates at a limited rate, so that undo logs do not fill the buffer pool (a different stall)."""
    return _updates(server, 8, "$R", rate=10_000)


def _many_tables(server: Server) -> None:
    """Create more tables than the table cache of any server in the lab can hold."""
    tables = (
        f"CREATE TABLE many.t{n} (a INT PRIMARY KEY, b INT) ENGINE=InnoDB" for n in range(1, _TABLES + 1)
    )
    server.sql("CREATE DATABASE many", *tables)


def _any_table(server: Server) -> Repeated:
    return Repeated(server, 32, ["SELECT b FROM many.t$R"], among=_TABLES)


@contextlib.contextmanager
def _opened_before(server: Server) -> Iterator[None]:
    """Open each table before the clients start."""
    server.sql(*(f"SELECT b FROM many.t{n}" for n in range(1, _TABLES + 1)))
    with _any_table(server):
        yield


@contextlib.contextmanager
def _old_snapshot(server: Server) -> Iterator[None]:
    """Keep a read view open while other clients update rows."""
    with contextlib.ExitStack() as stack:
        forgotten = stack.enter_context(contextlib.closing(server.connect()))
        with forgotten.cursor() as cursor:
            cursor.execute("START TRANSACTION WITH CONSISTENT SNAPSHOT")
        stack.enter_context(_paced_updates(server))
        _until_history_is_long(server, time.monotonic() + _OLD_S)
        yield


def _until_history_is_long(server: Server, not_before: float) -> None:
    deadline = time.monotonic() + _WITHIN_S
    while True:
        status = str(server.sql("SHOW ENGINE INNODB STATUS")[0][2])
        length = int(status.partition("History list length ")[2].split()[0])
        if length >= _HISTORY and time.monotonic() > not_before:
            return
        if time.monotonic() > deadline:
            raise WorkloadError(f"the history list of {server.name} does not grow")
        time.sleep(0.2)


def _many_accounts(server: Server) -> None:
    """Create so many accounts that FLUSH PRIVILEGES takes a large part of a second."""
    accounts = "SELECT 'localhost', CONCAT('x', a), '', '', '', '', 'caching_sha2_password' FROM lab.numbers"
    server.sql(
        "CREATE DATABASE lab",
        "CREATE TABLE lab.numbers (a INT AUTO_INCREMENT PRIMARY KEY, b INT)",
        *doubled("lab.numbers", "b", "0", _ACCOUNTS),
        "INSERT INTO mysql.user (Host, User, ssl_cipher, x509_issuer, x509_subject, authentication_string,"
        f" plugin) {accounts}",
    )


def _grants_shown(server: Server) -> Repeated:
    return Repeated(server, 10, ["SHOW GRANTS FOR root@localhost"], rate=500)


@contextlib.contextmanager
def _privileges_reloaded(server: Server) -> Iterator[None]:
    with _grants_shown(server), Repeated(server, 1, ["FLUSH PRIVILEGES"]):
        yield


def _hot_row(name: str, server: str, finding: str) -> Incident:
    return Incident(
        name, server, finding, lambda s: _updates(s, 190, "1"), lambda s: _updates(s, 190, "$R"),
        options=(*_FAST, "--max-connections=300"), seconds=15,
        what="190 connections update one row",
    )  # fmt: skip


def _history_list(name: str, server: str, *redo: str) -> Incident:
    return Incident(
        name, server, "history_list", _old_snapshot, _paced_updates, options=(*_FAST, *redo),
        what="a forgotten transaction keeps its read view open while others update rows",
    )  # fmt: skip


INCIDENTS = (
    Incident(
        "deadlock-search-559", "mysql-5.5.9", "deadlock_search",
        lambda s: _updates(s, 140, "1"), lambda s: _updates(s, 140, "$R"),
        options=_FAST, seconds=15,
        what="140 connections update one row",
    ),
    _hot_row("deadlock-search-56", "mysql-5.6.24", "deadlock_search"),
    _hot_row("deadlock-search-57", "mysql-5.7.22", "deadlock_search"),
    # since 8.0.18, a background thread searches for deadlocks, and no client waits for it
    _hot_row("hot-row-80", "mysql-8.0.31", "row_lock_convoy"),
    Incident(
        "cpu-loop-97", "mysql-9.7", "cpu_loop", lambda s: Burn(s, 1), lambda s: Idle(s, 10),
        what="one connection runs an endless CPU-bound query",
    ),
    Incident(
        "opening-tables-559", "mysql-5.5.9", "opening_tables", _any_table, _opened_before,
        setup=_many_tables,
        options=(*_FAST, "--sync-frm=0", "--table-open-cache=64", "--table-definition-cache=400"),
        twin_options=(*_FAST, "--sync-frm=0", "--table-open-cache=8000", "--table-definition-cache=4000"),
        what="32 connections read from 2,000 tables, and the table cache holds only 64",
    ),
    _history_list("history-56", "mysql-5.6.24", "--innodb-log-file-size=512M"),
    _history_list("history-57", "mysql-5.7.22", "--innodb-log-file-size=512M"),
    _history_list("history-80", "mysql-8.0.31", "--innodb-redo-log-capacity=1G"),
    _history_list("history-97", "mysql-9.7"),
    Incident(
        "privilege-cache-80", "mysql-8.0.31", "metadata_lock", _privileges_reloaded, _grants_shown,
        setup=_many_accounts,
        what="one client repeats FLUSH PRIVILEGES with 60,000 accounts; 10 others wait to check privileges",
    ),
)  # fmt: skip
