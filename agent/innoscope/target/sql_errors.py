"""Convert errors of PyMySQL to one-line messages with a remedy."""

from __future__ import annotations

import ssl
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pymysql
from pymysql.constants import ER

from innoscope.common.errors import InnoscopeError, SqlFailed

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_CERTIFICATE = "ssl-ca in the option file must name the issuer of the server's certificate"
GRANT = "GRANT PROCESS ON *.* TO '{user}'@'localhost'"
#: Privileges that Innoscope's statements may need, in order of preference. An error may name several of them.
_PRIVILEGES = ("SLAVE MONITOR", "REPLICATION CLIENT", "PROCESS")
GRANT_SCHEMA = "GRANT SELECT ON performance_schema.* TO '{user}'@'localhost'"

#: Server and client error numbers → message and remedy. ``{user}`` and ``{where}`` are filled in.
_FAILURES: Mapping[int, tuple[str, str]] = {
    1040: (
        "too many connections",
        "innoscope toggle plan max_connections 2000 shows how to raise the limit; for stacks, omit --queries",
    ),
    1044: ("access denied to {user}", GRANT_SCHEMA),
    1045: (
        "access denied for {user}",
        "put user and password into ~/.my.cnf under [client-innoscope]; then " + GRANT,
    ),
    1053: ("the server is shutting down", "stacks work without SQL: omit --queries"),
    # Each version's client sends the statement of that version: MySQL 8.4 and newer have no FLUSH HOSTS.
    1129: (
        "this host is blocked after many connection errors",
        "mysqladmin flush-hosts (or mariadb-admin flush-hosts), on the server's host",
    ),
    1130: ("this host is not allowed to connect over TCP", "--socket PATH, or an account for 127.0.0.1"),
    1142: ("{user} may not read performance_schema", GRANT_SCHEMA),
    1227: ("{user} lacks a privilege", GRANT),
    1698: (
        "access denied for {user}",
        "run as the system user of that account, or put another one into ~/.my.cnf",
    ),
    2002: ("no server answers at {where}", "innoscope targets shows where the server listens"),
    2003: ("no server answers at {where}", "innoscope targets shows where the server listens"),
    2006: ("the server at {where} closed the connection", "stacks work without SQL: omit --queries"),
    2013: ("the server at {where} did not answer in time", "stacks work without SQL: omit --queries"),
    2059: (
        "{user} uses an unsupported authentication plugin",
        "use an account with a password, or connect over the socket",
    ),
}


@contextmanager
def explaining(user: str, where: str) -> Iterator[None]:
    """Convert errors of PyMySQL to SqlFailed with a remedy. A malformed response may cause any exception."""
    try:
        yield
    except InnoscopeError:
        raise
    except RuntimeError as error:  # the authentication plugin needs the package `cryptography`
        raise _failure(2059, str(error), user, where) from error
    except pymysql.MySQLError as error:
        inner = getattr(error, "original_exception", None)
        if isinstance(inner, ssl.SSLError):
            raise SqlFailed(f"no SQL: TLS with {where} failed: {inner}", remedy=_CERTIFICATE) from error
        code = error.args[0] if error.args else None
        words = str(error.args[-1]) if error.args else type(error).__name__
        raise _failure(code, words, user, where) from error
    except OSError:
        raise
    except Exception as error:
        words = f"malformed response ({type(error).__name__}: {error})"
        raise SqlFailed(f"no SQL: {words} from the server at {where}", remedy="innoscope doctor") from error


def _failure(code: object, words: str, user: str, where: str) -> SqlFailed:
    if not isinstance(code, int) or code not in _FAILURES:
        return SqlFailed(f"no SQL: the server at {where} answered: {words}", remedy="innoscope doctor")
    what, remedy = (text.format(user=user, where=where) for text in _FAILURES[code])
    if code == ER.SPECIFIC_ACCESS_DENIED_ERROR:
        privilege = next((one for one in _PRIVILEGES if one in words), "PROCESS")
        remedy = remedy.replace("PROCESS", privilege, 1)
    return SqlFailed(f"no SQL: {what}", remedy=remedy)
