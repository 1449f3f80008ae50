"""A short, polite SQL connection to the server we look at, and what it says of its threads.

Every step has a timeout, and no statement here can wait on a metadata lock.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any

from innoscope.errors import BadFile, SqlFailed
from innoscope.records import record
from innoscope.target import credentials, version
from innoscope.target.container import differing
from innoscope.target.driver import driver
from innoscope.target.fingerprint import fingerprint
from innoscope.target.model import Query
from innoscope.target.proc import ProcFs
from innoscope.target.sql_errors import GRANT, GRANT_SCHEMA, explaining
from innoscope.target.unix_socket import socket_from_here

if TYPE_CHECKING:
    import ssl
    from collections.abc import Mapping

    from pymysql.connections import Connection

    from innoscope.target.model import Target

_HERE = ("127.0.0.1", "::1", "localhost")


@record
class _Source:
    """How one generation of servers tells which OS thread runs what."""

    statement: str
    remedy: str


#: Columns: tid, id, user, host, db, command, state, seconds, digest, info.
#: The last row of a tid is its innermost statement.
_PERFORMANCE_SCHEMA = _Source(
    """SELECT t.THREAD_OS_ID, t.PROCESSLIST_ID, t.PROCESSLIST_USER, t.PROCESSLIST_HOST, t.PROCESSLIST_DB,
       t.PROCESSLIST_COMMAND, t.PROCESSLIST_STATE, t.PROCESSLIST_TIME, s.DIGEST_TEXT,
       LEFT(t.PROCESSLIST_INFO, 4096)
       FROM performance_schema.threads t LEFT JOIN performance_schema.events_statements_current s
       ON s.THREAD_ID = t.THREAD_ID AND s.END_EVENT_ID IS NULL
       WHERE t.THREAD_OS_ID IS NOT NULL AND t.PROCESSLIST_ID IS NOT NULL
       ORDER BY s.EVENT_ID""",
    "start the server with performance_schema=ON, and " + GRANT_SCHEMA,
)
_PROCESSLIST = _Source(
    """SELECT TID, ID, USER, HOST, DB, COMMAND, STATE, TIME, NULL, LEFT(INFO, 4096)
       FROM information_schema.PROCESSLIST WHERE TID > 0""",
    GRANT,
)

#: By flavour, the newest generation first: the first whose version is not above the server's is taken. MySQL
#: before 5.7 has no TID column, Percona Server 5.6 has: asking in vain costs nothing but the parsing.
_SOURCES: Mapping[str, tuple[tuple[tuple[int, ...], _Source], ...]] = {
    "mysql": (((5, 7), _PERFORMANCE_SCHEMA), ((), _PROCESSLIST)),
    "mariadb": (((), _PROCESSLIST),),
}


def connect(
    target: Target,
    options_file: str | None = None,
    user: str | None = None,
    timeout: float = 1.0,
    *,
    proc: ProcFs | None = None,
) -> Connection[Any]:
    """A connection over the target's Unix socket, else over TCP on 127.0.0.1 in our own network namespace.

    ``timeout`` is seconds, for connecting and for each answer. Raises SqlFailed or BadFile (option file).
    """
    proc = proc or ProcFs()
    account = credentials.find(options_file, user)
    if target.socket is not None:
        return _over_socket(proc, target, target.socket, account, timeout)
    if target.port is not None and "net" not in differing(proc, target.pid):
        return _open(account, f"127.0.0.1:{target.port}", timeout, host="127.0.0.1", port=target.port)
    raise SqlFailed(
        f"no way to connect to process {target.pid}: it listens on no socket or port that we can reach",
        remedy="stacks work without SQL; a server that starts up or recovers does not listen yet",
    )


def connect_tcp(
    host: str, port: int, options_file: str | None = None, user: str | None = None, timeout: float = 1.0
) -> Connection[Any]:
    """A connection over TCP, with TLS where the option file asks for it, and always to another host.

    Raises SqlFailed or BadFile.
    """
    account = credentials.find(options_file, user)
    if account.tls is None and host not in _HERE:
        account = replace(account, tls=credentials.Tls())
    return _open(account, f"{host}:{port}", timeout, host=host, port=port)


def queries(target: Target, conn: Connection[Any]) -> dict[int, Query]:
    """``{OS thread id in the server's pid namespace: what it does}``. Raises SqlFailed.

    No literals: the text is MySQL's digest; where it has none yet, and in MariaDB, our fingerprint.
    """
    number = target.version or version.parse(str(getattr(conn, "server_version", "")))
    source = source_for(target.flavour, number)
    rows = _rows(conn, source, number)
    found: dict[int, Query] = {}
    for tid, connection_id, user, host, db, command, state, seconds, digest, info in rows:
        text = digest or (fingerprint(info) if info else None)
        found[int(tid)] = Query(
            int(connection_id),
            _text(user),
            _text(host),
            _text(db),
            _text(command),
            _text(state) or None,
            seconds,
            _text(text),
        )
    if _sees_only_itself(conn, found):
        raise SqlFailed(
            f"{_user(conn)} sees no thread but its own", remedy=source.remedy.format(user=_user(conn))
        )
    if not found:
        raise SqlFailed(
            "the server tells of no thread what it does", remedy=source.remedy.format(user=_user(conn))
        )
    return found


def _sees_only_itself(conn: Connection[Any], found: Mapping[int, Query]) -> bool:
    """Whether an account without PROCESS was shown nothing but itself, though others are connected."""
    own: int = conn.thread_id()  # type: ignore[no-untyped-call]
    if [query.connection_id for query in found.values()] != [own]:
        return False
    with explaining(_user(conn), "the socket"), conn.cursor() as cursor:
        cursor.execute("SHOW GLOBAL STATUS LIKE 'Threads_connected'")
        row = cursor.fetchone()
    return row is not None and int(row[1]) > 1


def source_for(flavour: str, number: tuple[int, ...]) -> _Source:
    """The statement for that server; an unknown version is taken for an old one."""
    return next(source for least, source in _SOURCES[flavour] if number >= least)


def _rows(conn: Connection[Any], source: _Source, number: tuple[int, ...]) -> tuple[tuple[Any, ...], ...]:
    with explaining(_user(conn), "the socket"), conn.cursor() as cursor:
        try:
            cursor.execute(source.statement)
        except Exception as error:
            if error.args and error.args[0] == 1054:  # unknown column: a fork or release that lacks it
                raise _no_thread_ids(number) from error
            raise
        return tuple(cursor.fetchall())


def _no_thread_ids(number: tuple[int, ...]) -> SqlFailed:
    shown = ".".join(map(str, number)) or "unknown version"
    return SqlFailed(
        f"this server ({shown}) does not tell OS thread ids; stacks are shown without their queries",
        remedy="MySQL 5.7 or MariaDB 10.3 and newer do; here, compare with SHOW PROCESSLIST by eye",
    )


def _over_socket(
    proc: ProcFs, target: Target, path: str, account: credentials.Credentials, timeout: float
) -> Connection[Any]:
    with socket_from_here(proc, target, path) as reachable:
        return _open(account, path, timeout, unix_socket=reachable)


def _open(account: credentials.Credentials, where: str, timeout: float, **place: Any) -> Connection[Any]:
    pymysql = driver(over_tcp="host" in place)
    encrypted = account.tls if "host" in place else None  # nothing leaves this host over a Unix socket
    with explaining(account.user, where):
        connection: Connection[Any] = pymysql.connect(
            user=account.user,
            password=account.password,
            connect_timeout=timeout,
            read_timeout=timeout,
            write_timeout=timeout,
            ssl=_context(encrypted) if encrypted else None,
            ssl_disabled=encrypted is None,  # a TLS context costs 20 ms
            autocommit=True,
            charset="utf8mb4",  # known from 5.5.3 on
            program_name="innoscope",
            **place,
        )
    if encrypted and not getattr(connection, "_secure", False):
        connection.close()
        raise SqlFailed(f"no SQL: the server at {where} does not speak TLS", remedy="ssl-mode=DISABLED")
    return connection


@cache
def _context(tls: credentials.Tls) -> ssl.SSLContext:
    import ssl

    try:
        context = ssl.create_default_context(cafile=tls.ca)
        context.check_hostname = tls.check_host and tls.ca is not None
        context.verify_mode = ssl.CERT_REQUIRED if tls.ca else ssl.CERT_NONE
        if tls.cert is not None:
            context.load_cert_chain(tls.cert, tls.key)
    except OSError as error:
        raise BadFile(
            f"cannot use the ssl-* files of the option file: {error.strerror or error}",
            remedy=f"openssl x509 -noout -in {tls.ca or tls.cert}",
        ) from error
    return context


def _user(conn: Connection[Any]) -> str:
    user = conn.user
    return user.decode(errors="replace") if isinstance(user, bytes) else str(user)


def _text(value: object) -> str | None:
    if value is None:
        return None
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
