"""Statements of many kinds that do not end, each with a secret in one of its literals or comments."""

from __future__ import annotations

import contextlib
import re
from typing import TYPE_CHECKING, Any

from pymysql.constants import CLIENT
from pymysql.constants.COMMAND import COM_QUERY

from waiting import until
from workloads.crowd import Crowd

if TYPE_CHECKING:
    from collections.abc import Iterator

    from servers import Server

DATABASE = "vault"
FOREVER = 100_000
#: Maximum number of bytes of a statement that Innoscope reads.
_CUT = 4_096


def _hex(secret: str) -> str:
    return secret.encode().hex()


def _bits(secret: str) -> str:
    return "".join(f"{byte:08b}" for byte in secret.encode())


#: Statements that wait for a row that another transaction has locked.
_ROWS = (
    "UPDATE t SET b = 'Zs01Update' WHERE a = 1",
    'UPDATE t SET c = "Zs02Quoted" WHERE a = 1',
    "DELETE FROM t WHERE a = 1 AND b <> 'Zs03Delete'",
    "INSERT INTO t (a, b) VALUES (1, 'Zs04Insert')",
    "INSERT INTO t (a, b) VALUES (1, 'x') ON DUPLICATE KEY UPDATE b = 'Zs05Duplicate'",
    "REPLACE INTO t (a, b) VALUES (1, 'Zs06Replace')",
    f"SELECT * FROM t WHERE a = 1 AND b <> x'{_hex('Zs07Hex')}' FOR UPDATE",
    f"UPDATE t SET b = 0x{_hex('Zs08Number')} WHERE a = 1",
    f"UPDATE t SET b = b'{_bits('Zs09Bits')}' WHERE a = 1",
    "UPDATE t /* Zs10Comment */ SET b = 'x', c = 'y' WHERE a = 1 -- Zs10Comment",
    "UPDATE t SET c = NULL WHERE a = 1 /*!40000 AND b <> 'Zs11Version' */",
    """UPDATE t SET b = '{"password": "Zs12Json"}', c = '' WHERE a = 1""",
    # a statement that is cut in the middle of the literal
    f"UPDATE t SET c = '', b = '{'Zs13Cut ' * (_CUT // 6)}' WHERE a = 1",
)
#: Statements that sleep or wait for a user lock, each with the statements to execute first on its connection.
_SLEEPS: tuple[tuple[tuple[str, ...], str], ...] = (
    ((), f"SELECT SLEEP({FOREVER}), 'Zs14Select'"),
    ((), f"SELECT SLEEP({FOREVER}), N'Zs15National', _utf8'Zs15National'"),
    ((), "CALL p('Zs16Call')"),
    ((f"PREPARE s FROM 'SELECT SLEEP({FOREVER}), 1, ''Zs17Prepare'''",), "EXECUTE s"),
    ((f"PREPARE s FROM 'SELECT SLEEP({FOREVER}), 2, ?'", "SET @v = 'Zs18Using'"), "EXECUTE s USING @v"),
    ((), f"SELECT 1; SELECT SLEEP({FOREVER}), 3, 'Zs19Second'"),
    ((), f"SELECT GET_LOCK('Zs20Lock', {FOREVER})"),
)
#: Statements that wait behind FLUSH TABLES WITH READ LOCK.
_ACCOUNTS = ("CREATE USER zoe IDENTIFIED BY 'Zs21Create'", "SET PASSWORD FOR yan@localhost = {}")
_PASSWORD = "Zs22Password"  # noqa: S105
SECRETS = tuple(sorted({
    *re.findall(r"Zs\d\d[A-Z][a-z]+", str((_ROWS, _SLEEPS, _ACCOUNTS))),
    "Zs07Hex", "Zs08Number", "Zs09Bits", _PASSWORD,
}))  # fmt: skip
#: Minimum number of different digests. Several updates have the same digest.
DIGESTS = 17
#: Forms of a secret in memory and files.
_FORMS = {
    form: secret
    for secret in SECRETS
    for form in (
        secret.encode(), _hex(secret).encode(), _hex(secret).upper().encode(), _bits(secret).encode(),
        secret.encode("utf-16-le"),
    )
}  # fmt: skip
_ANY = re.compile(b"|".join(map(re.escape, _FORMS)))
_COUNT = len(_ROWS) + len(_SLEEPS) + len(_ACCOUNTS)


def leaks(data: bytes) -> set[str]:
    """Return the secrets that the data contain in any form."""
    return {_FORMS[form] for form in _ANY.findall(data)}


@contextlib.contextmanager
def busy(server: Server) -> Iterator[None]:
    """Run all statements until the block ends. They have at least DIGESTS different digests."""
    server.sql(*_prepared())
    with contextlib.ExitStack() as stack:
        stack.enter_context(Crowd(server, 1, DATABASE, ("BEGIN", "SELECT * FROM t WHERE a = 1 FOR UPDATE")))
        stack.enter_context(Crowd(server, 1, DATABASE, ("SELECT GET_LOCK('Zs20Lock', 0)",)))
        for statement in _ROWS:
            _send(stack, server, (), statement)
        for before, statement in _SLEEPS:
            _send(stack, server, before, statement)
        _wait(server, len(_ROWS) + len(_SLEEPS))
        _send(stack, server, (), "FLUSH TABLES WITH READ LOCK")
        _wait(server, len(_ROWS) + len(_SLEEPS) + 1)
        old = not server.name.startswith("mysql-") or server.name.startswith(("mysql-5.5", "mysql-5.6"))
        password = f"PASSWORD('{_PASSWORD}')" if old else f"'{_PASSWORD}'"
        for statement in _ACCOUNTS:
            _send(stack, server, (), statement.format(password))
        _wait(server, _COUNT + 1)
        yield


def _prepared() -> tuple[str, ...]:
    return (
        f"CREATE DATABASE {DATABASE}",
        f"CREATE TABLE {DATABASE}.t (a INT PRIMARY KEY, b VARCHAR(400), c VARCHAR(400)) ENGINE=InnoDB",
        f"INSERT INTO {DATABASE}.t VALUES (1, 'b', 'c')",
        f"CREATE PROCEDURE {DATABASE}.p(secret VARCHAR(40)) SELECT SLEEP({FOREVER}), secret, 4",
        "CREATE USER yan@localhost",
        f"SET GLOBAL innodb_lock_wait_timeout = {FOREVER}",
        f"SET GLOBAL lock_wait_timeout = {FOREVER}",
    )


def _send(stack: contextlib.ExitStack, server: Server, before: tuple[str, ...], statement: str) -> None:
    """Send a statement on a new connection, and do not wait for its result."""
    connection: Any = server.connect(database=DATABASE, autocommit=None, client_flag=CLIENT.MULTI_STATEMENTS)
    stack.callback(connection._force_close)
    for one in before:
        connection.query(one)
    connection._execute_command(COM_QUERY, statement)


def _wait(server: Server, number: int) -> None:
    """Wait until this number of statements are running."""
    listed = (
        f"SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE DB = '{DATABASE}' AND COMMAND <> 'Sleep'"
    )
    until(lambda: server.sql(listed)[0][0] == number, lambda: server.sql("SHOW PROCESSLIST"))
