"""Plant secrets in a server: in running statements, locked rows, the latest deadlock and variables."""

from __future__ import annotations

import contextlib
from functools import partial
from typing import TYPE_CHECKING, Any

import pymysql

from waiting import until
from workloads.crowd import Crowd

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from servers import Server

DATABASE = "vault"
#: Strings that are planted in the server's data and must not appear in Innoscope's output.
SECRETS = (
    "Zq1Create", "Zq2Update", "Zq3Row", "Zq4Deadlock", "Zq5Foreign", "Zq6Init", "Zq7Lines", "Zq8Comment",
    "Zq9Other", "Zq10Password", "8675309",
)  # fmt: skip
#: A literal that contains imitations of the sections of SHOW ENGINE INNODB STATUS.
_FORGED = (
    "Zq7Lines''\n---TRANSACTION 5, ACTIVE 3 sec\nMySQL thread id 5, query id 6 host user\n Zq7Lines \n"
    "--------\nFILE I/O\n--------\nZq7Lines"
)


def leaks(text: str) -> list[str]:
    """Return the secrets that a string contains, in clear text or as hexadecimal bytes."""
    lower = text.lower()
    return [secret for secret in SECRETS if secret.lower() in lower or secret.encode().hex() in lower]


@contextlib.contextmanager
def planted(server: Server) -> Iterator[None]:
    """Plant all secrets. Transactions and waits remain until the block ends."""
    with contextlib.ExitStack() as stack:
        for statement in _prepared():
            _run(server, statement)
        with contextlib.suppress(pymysql.err.IntegrityError):
            _run(server, f"INSERT INTO {DATABASE}.child VALUES ('Zq5Foreign')")
        _deadlock(server)
        hold = ("BEGIN", "SELECT * FROM t WHERE a = 1 FOR UPDATE")
        stack.enter_context(Crowd(server, 1, DATABASE, hold))
        for number, statement in enumerate(_waiting(server), 1):
            stack.enter_context(Crowd(server, 1, DATABASE)).send(statement)
            _until(partial(_waits, server, number))
        yield


def shown_by(server: Server) -> str:
    """Return the output of the server itself: InnoDB status, process list and variables."""
    statements = ("SHOW ENGINE INNODB STATUS", "SHOW FULL PROCESSLIST", "SHOW GLOBAL VARIABLES")
    return "".join(str(_run(server, statement)) for statement in statements)


def _prepared() -> Iterator[str]:
    yield f"CREATE DATABASE {DATABASE}"
    yield f"CREATE TABLE {DATABASE}.t (a INT PRIMARY KEY, b VARCHAR(400)) ENGINE=InnoDB"
    yield f"INSERT INTO {DATABASE}.t VALUES (1, 'Zq3Row'), (2, 'Zq3Row'), (3, 'Zq3Row'), (8675309, 'x')"
    yield f"CREATE TABLE {DATABASE}.parent (a VARCHAR(40) PRIMARY KEY) ENGINE=InnoDB"
    key = f"FOREIGN KEY (a) REFERENCES {DATABASE}.parent (a)"
    yield f"CREATE TABLE {DATABASE}.child (a VARCHAR(40), {key}) ENGINE=InnoDB"
    yield "CREATE USER yan@localhost"
    yield "SET GLOBAL init_connect = \"SET @secret = 'Zq6Init'\""
    yield "SET GLOBAL innodb_lock_wait_timeout = 600"


def _waiting(server: Server) -> Iterator[str]:
    yield "UPDATE t SET b = 'Zq2Update' WHERE a = 1"
    yield 'UPDATE t /* Zq8Comment */ SET b = "Zq2Update\\\'Zq2Update" WHERE a = 1 -- Zq8Comment'
    yield f"UPDATE t SET b = '{_FORGED}' WHERE a = 1 OR a = 8675309"
    yield f"UPDATE t SET b = '{'Zq9Other ' * 70}' WHERE a = 1"
    yield "SELECT * FROM t WHERE a = 1 AND b = _utf8 x'5a71325570646174' FOR UPDATE"
    yield "FLUSH TABLES WITH READ LOCK"
    yield "CREATE USER zoe IDENTIFIED BY 'Zq1Create'"
    password = "'Zq10Password'" if server.name == "mysql-9.7" else "PASSWORD('Zq10Password')"
    yield f"SET PASSWORD FOR yan@localhost = {password}"


def _deadlock(server: Server) -> None:
    """Make two transactions wait for each other, until one of them is rolled back."""
    change = "UPDATE t SET b = 'Zq4Deadlock' WHERE a = {}"
    with (
        Crowd(server, 1, DATABASE, ("BEGIN", change.format(2))) as other,
        contextlib.closing(server.connect(database=DATABASE, autocommit=None)) as mine,
        mine.cursor() as cursor,
    ):
        cursor.execute("BEGIN")
        cursor.execute(change.format(3))
        other.send(change.format(3))
        waiting = "SELECT COUNT(*) FROM information_schema.INNODB_TRX WHERE trx_state = 'LOCK WAIT'"
        _until(lambda: _run(server, waiting)[0][0] == 1)
        with contextlib.suppress(pymysql.err.OperationalError):
            cursor.execute(change.format(2))


def _waits(server: Server, number: int) -> bool:
    """Return whether ``number`` statements are running."""
    listed = (
        f"SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE COMMAND = 'Query' AND DB = '{DATABASE}'"
    )
    return bool(_run(server, listed)[0][0] == number)


def _run(server: Server, statement: str) -> tuple[tuple[Any, ...], ...]:
    with contextlib.closing(server.connect()) as connection, connection.cursor() as cursor:
        cursor.execute(statement)
        return tuple(cursor.fetchall())


def _until(reached: Callable[[], bool]) -> None:
    until(reached, every_s=0.15)  # INNODB_TRX is refreshed only if it has not been read for 0.1 s
