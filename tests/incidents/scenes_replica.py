"""Define incidents on a replica."""

from __future__ import annotations

from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any, Final

import pymysql

from incidents.lab import Incident
from servers import Server
from waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator

OPTIONS: Final = ("--server-id=2", "--relay-log=relay", "--innodb-lock-wait-timeout=600")
_SOURCE: Final = ("--server-id=1", "--log-bin=binlog", "--binlog-format=ROW")
_WITHIN_S: Final = 30
#: The replica is diagnosed once it lags by this many seconds.
_BEHIND: Final = 8
#: Replication statements and the name of the lag column. The key is True for MySQL 8.0.22 and newer, and
#: False for older MySQL and for MariaDB.
_WORDS: Final = {
    False: (
        # without these options, MariaDB requires a valid certificate
        "CHANGE MASTER TO MASTER_HOST='127.0.0.1', MASTER_PORT={}, MASTER_USER='copy',"
        " MASTER_SSL=0, MASTER_SSL_VERIFY_SERVER_CERT=0",
        "START SLAVE",
        "SHOW SLAVE STATUS",
        "Seconds_Behind_Master",
    ),
    True: (
        "CHANGE REPLICATION SOURCE TO SOURCE_HOST='127.0.0.1', SOURCE_PORT={}, SOURCE_USER='copy',"
        " GET_SOURCE_PUBLIC_KEY=1",
        "START REPLICA",
        "SHOW REPLICA STATUS",
        "Seconds_Behind_Source",
    ),
}


class Source(Server):
    """A server that generates its own UUID, because its replication partner uses the template's."""

    def _prepare(self) -> None:
        super()._prepare()
        (self.folder.data / "auto.cnf").unlink(missing_ok=True)


class Pair:
    """A source and its replica, with connections to both."""

    def __init__(self, source: Server, replica: Server, at_source: Any, at_replica: Any) -> None:
        self.source, self.replica = source, replica
        self._at_source, self._at_replica = at_source, at_replica
        self._words = _WORDS[replica.name in ("mysql-8.0.31", "mysql-9.7")]

    def begin(self) -> None:
        """Create a table on the source and start replication."""
        for host in ("127.0.0.1", "localhost"):
            self.change(f"CREATE USER 'copy'@'{host}'")
            self.change(f"GRANT REPLICATION SLAVE ON *.* TO 'copy'@'{host}'")
        self.change("CREATE DATABASE shop")
        self.change("CREATE TABLE shop.stock (a INT PRIMARY KEY, b INT) ENGINE=InnoDB")
        self.change("INSERT INTO shop.stock VALUES (1, 0), (2, 0)")
        self.ask(self._words[0].format(self.source.port))
        self.ask(self.start_statement)
        until(lambda: self._has("shop", "stock"), within_s=_WITHIN_S)

    def change(self, statement: str) -> None:
        """Run a statement on the source."""
        with self._at_source.cursor() as cursor:
            cursor.execute(statement)

    def behind(self) -> int:
        """Return the replica's lag in seconds."""
        return int(self.status()[self._words[3]] or 0)

    def stop(self) -> None:
        """Stop the replica's threads, as an operator does."""
        self.ask(self.stop_statement)

    def start(self) -> None:
        """Start the replica's threads."""
        self.ask(self.start_statement)

    @property
    def start_statement(self) -> str:
        """Return the statement that starts the replica's threads."""
        return self._words[1]

    @property
    def stop_statement(self) -> str:
        """Return the statement that stops the replica's threads."""
        return self.start_statement.replace("START", "STOP")

    def errno(self) -> int:
        """Return the code of the error that stopped the applier, or 0."""
        return int(self.status()["Last_SQL_Errno"])

    def status(self) -> Any:
        """Return the replica's status as a dictionary, by column name."""
        [status] = self.ask(self._words[2])
        return status

    def _has(self, schema: str, table: str) -> bool:
        tables = "information_schema.TABLES"
        return bool(
            self.ask(f"SELECT 1 FROM {tables} WHERE TABLE_SCHEMA = '{schema}' AND TABLE_NAME = '{table}'")
            and self.ask(f"SELECT 1 FROM {schema}.{table} HAVING COUNT(*) = 2")
        )

    def ask(self, statement: str) -> Any:
        """Run a statement on the replica; return its rows as dictionaries, by column name."""
        with self._at_replica.cursor(pymysql.cursors.DictCursor) as cursor:
            cursor.execute(statement)
            return cursor.fetchall()


@contextmanager
def following(replica: Server) -> Iterator[Pair]:
    with (
        Source(replica.name, options=_SOURCE) as source,
        closing(source.connect()) as at_source,
        closing(replica.connect()) as at_replica,
    ):
        pair = Pair(source, replica, at_source, at_replica)
        pair.begin()
        yield pair


@contextmanager
def _transaction(replica: Server, hold: str) -> Iterator[tuple[Pair, Any]]:
    """Begin a transaction that holds a lock that the applier needs; yield the pair and the cursor."""
    with (
        following(replica) as pair,
        closing(replica.connect(database="shop")) as holder,
        holder.cursor() as cursor,
    ):
        cursor.execute("BEGIN")
        cursor.execute(hold)
        yield pair, cursor


@contextmanager
def _held(replica: Server, hold: str, change: str) -> Iterator[None]:
    """Keep the transaction open while the replica falls behind."""
    with _transaction(replica, hold) as (pair, cursor):
        pair.change(change)
        until(lambda: pair.behind() >= _BEHIND, within_s=_WITHIN_S)
        yield
        cursor.execute("ROLLBACK")


@contextmanager
def _in_step(replica: Server, hold: str, change: str) -> Iterator[None]:
    """Run the same statements as ``_held``, but end the transaction before the change."""
    with _transaction(replica, hold) as (pair, cursor):
        cursor.execute("COMMIT")
        pair.change(change)
        yield


_ROW = ("SELECT * FROM stock WHERE a = 1 FOR UPDATE", "UPDATE shop.stock SET b = 7 WHERE a = 1")
_TABLE = ("SELECT * FROM stock", "ALTER TABLE shop.stock ADD COLUMN c INT")


def _row(name: str, server: str) -> Incident:
    return Incident(
        name,
        server,
        "replication_applier",
        lambda s: _held(s, *_ROW),
        lambda s: _in_step(s, *_ROW),
        options=OPTIONS,
        what="a forgotten transaction on a replica holds the lock of a row that the applier must update",
    )


INCIDENTS = (
    _row("replica-row-lock-56", "mysql-5.6.24"),
    _row("replica-row-lock-57", "mysql-5.7.22"),
    _row("replica-row-lock-80", "mysql-8.0.31"),
    _row("replica-row-lock-1011", "mariadb-10.11"),
    _row("replica-row-lock-1145", "mariadb-11.4.5"),
    Incident(
        "replica-metadata-lock-97",
        "mysql-9.7",
        "replication_applier",
        lambda s: _held(s, *_TABLE),
        lambda s: _in_step(s, *_TABLE),
        options=OPTIONS,
        what="a forgotten transaction on a replica has read a table; a replicated ALTER TABLE waits for it",
    ),
)
