"""Define incidents with large transactions: a rollback, and a commit that copies 4 GB to the binary log."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Final

from pymysql.constants.COMMAND import COM_QUERY

from incidents.lab import Incident
from incidents.table_filling import doubled
from waiting import until
from workloads import Crowd, Repeated

if TYPE_CHECKING:
    from collections.abc import Iterator

    from servers import Server

#: Number of rows in the table.
_ROWS = 200_000
#: How many times the transaction changes each row: enough for the rollback to outlast the diagnosis.
_PASSES = 20
_CLIENTS = 8
_UPDATE: Final = "UPDATE shop.stock SET b = b + 1 WHERE a = {}"
#: Options that make commits fast, make INSERT … SELECT assign ids without gaps, and let clients wait for rows
#: for a long time.
_OPTIONS: Final = (
    "--innodb-flush-log-at-trx-commit=0",
    "--innodb-autoinc-lock-mode=0",
    "--innodb-lock-wait-timeout=600",
    "--innodb-log-file-size=512M",
    "--innodb-buffer-pool-size=512M",  # holds the undo log, too
)

#: Size of a document in bytes.
_DOCUMENT = 250_000
_DOCUMENTS = 400
#: Bytes of row events in the transaction: enough for the copy to outlast the diagnosis.
_LOGGED = 4_000_000_000
_LOGGING: Final = (
    "--server-id=1",
    "--log-bin=binlog",
    "--binlog-format=ROW",
    "--binlog-cache-size=4096",  # makes the copy slow
    "--sync-binlog=0",
    "--max-binlog-size=1G",
    "--innodb-flush-log-at-trx-commit=0",
    "--innodb-buffer-pool-size=256M",
    "--innodb-log-file-size=512M",
)


@contextlib.contextmanager
def _large_transaction(server: Server) -> Iterator[Any]:
    """Change all rows of a table several times; yield the connection with the open transaction."""
    server.sql(
        "CREATE DATABASE shop",
        "CREATE TABLE shop.stock (a INT AUTO_INCREMENT PRIMARY KEY, b INT) ENGINE=InnoDB",
        *doubled("shop.stock", "b", "0", _ROWS),
    )
    with contextlib.closing(server.connect(database="shop")) as connection, connection.cursor() as cursor:
        cursor.execute("BEGIN")
        for _ in range(_PASSES):
            cursor.execute("UPDATE stock SET b = b + 1")
        yield connection


@contextlib.contextmanager
def _rolls_back(server: Server) -> Iterator[None]:
    """Roll back while clients wait for rows of the table."""
    with _large_transaction(server) as connection, Crowd(server, _CLIENTS, "shop") as crowd:
        connection._execute_command(COM_QUERY, "ROLLBACK")
        crowd.send(*(_UPDATE.format(row) for row in range(1, _CLIENTS + 1)))
        until(lambda: _has(server, "ROLLING BACK", 1) and _has(server, "LOCK WAIT", _CLIENTS))
        yield
        connection._force_close()


def _has(server: Server, state: str, count: int) -> bool:
    """Return whether exactly ``count`` transactions are in ``state``."""
    transactions = "information_schema.INNODB_TRX"
    return server.sql(f"SELECT COUNT(*) FROM {transactions} WHERE trx_state = '{state}'") == [(count,)]


@contextlib.contextmanager
def _commits(server: Server) -> Iterator[None]:
    """Commit instead of rolling back, then let the same number of clients update rows of the table."""
    with _large_transaction(server) as connection:
        connection.commit()
        with Repeated(server, _CLIENTS, [_UPDATE.format("$R")], among=_ROWS, rate=500):
            yield


@contextlib.contextmanager
def _bulk_commit(server: Server) -> Iterator[None]:
    """Commit a transaction with a large amount of row data while others commit small transactions.

    With the full row image, the binary log contains the old and the new documents, although the transaction
    does not change them.
    """
    server.sql(
        "CREATE DATABASE archive",
        "CREATE TABLE archive.scans (a INT AUTO_INCREMENT PRIMARY KEY, b INT, document MEDIUMBLOB)",
        *doubled("archive.scans", "b, document", f"0, REPEAT('x', {_DOCUMENT})", _DOCUMENTS),
    )
    connection: Any
    with contextlib.closing(server.connect(database="archive")) as connection, connection.cursor() as cursor:
        cursor.execute("BEGIN")
        for _ in range(_LOGGED // (2 * _DOCUMENT * _DOCUMENTS)):
            cursor.execute("UPDATE scans SET b = b + 1")
        with _small_commits(server) as clients:
            connection._execute_command(COM_QUERY, "COMMIT")
            until(lambda: clients.listed("COMMAND = 'Query' AND TIME >= 1"))
            yield
            connection._force_close()


def _small_commits(server: Server) -> Repeated:
    make = ("CREATE TABLE t1 (a INT AUTO_INCREMENT PRIMARY KEY, b INT) ENGINE=InnoDB",)
    return Repeated(server, _CLIENTS, ["INSERT INTO t1 (b) VALUES (1)"], make=make, rate=500)


def _bulk(name: str, server: str) -> Incident:
    return Incident(
        name,
        server,
        "binlog_bulk",
        _bulk_commit,
        _small_commits,
        options=_LOGGING,
        what="a transaction with 4 GB of row events commits while 8 clients commit small transactions",
    )


def _rollback(name: str, server: str) -> Incident:
    return Incident(
        name,
        server,
        "long_rollback",
        _rolls_back,
        _commits,
        options=_OPTIONS,
        what="a transaction with 4 million row changes is rolled back, and 8 clients wait for its row locks",
    )


INCIDENTS = (
    _bulk("binlog-bulk-57", "mysql-5.7.22"),
    _bulk("binlog-bulk-80", "mysql-8.0.31"),
    _bulk("binlog-bulk-1011", "mariadb-10.11"),
    _rollback("long-rollback-56", "mysql-5.6.24"),
    _rollback("long-rollback-57", "mysql-5.7.22"),
    _rollback("long-rollback-80", "mysql-8.0.31"),
    _rollback("long-rollback-1011", "mariadb-10.11"),
)
