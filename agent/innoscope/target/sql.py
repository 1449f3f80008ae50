"""Connect to a server over SQL, and read the statements that its threads are executing.

Each step has a timeout, and no statement here can wait for a metadata lock.
"""

from __future__ import annotations

import socket
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pymysql.constants import CR, ER
from pymysql.err import OperationalError

from innoscope.common.errors import SqlFailed
from innoscope.target import choice, credentials, login, peer, version
from innoscope.target.container import differing_namespaces
from innoscope.target.digests import without_literals
from innoscope.target.login import Connection, LocalConnection
from innoscope.target.model import Query
from innoscope.target.proc import ProcFs
from innoscope.target.sql_errors import GRANT, GRANT_SCHEMA, explaining
from innoscope.target.unix_socket import socket_from_here
from innoscope.target.wire import Wire

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from innoscope.target.credentials import Credentials, Tls
    from innoscope.target.model import Target
    from innoscope.target.wire import Budget

_HERE = ("127.0.0.1", "::1", "localhost")


@dataclass(frozen=True, slots=True)
class _Source:
    """The query that maps OS threads to statements on some servers, and the remedy if it fails."""

    statement: str
    remedy: str


#: Columns: tid, id, user, host, db, command, state, seconds, digest, info.
#: The last row for a tid is its innermost statement.
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

#: Queries by flavour, newest generation first. The first one whose version is not above the server's is used.
#: MySQL before 5.7 has no TID column, but Percona Server 5.6 has one; a failed attempt is cheap, because the
#: statement is only parsed.
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
) -> Connection:
    """Connect over the target's Unix socket, else over TCP on 127.0.0.1 in our own network namespace.

    Nothing is sent if another process listens on the socket or port. ``timeout`` is the limit in
    seconds for connecting and for each complete response. Raise SqlFailed (NotChosen for a server in a
    container) or BadFile (option file).
    """
    proc = proc or ProcFs()
    choice.require_chosen(proc, target)
    account = credentials.find(options_file, user)
    if target.socket is not None:
        return _over_socket(proc, target, target.socket, account, timeout)
    if target.port is not None:
        return _to_this_host(proc, target, "127.0.0.1", target.port, account, timeout)
    raise _not_reachable(target)


def connect_tcp(
    host: str,
    port: int,
    options_file: str | None = None,
    user: str | None = None,
    timeout: float = 1.0,
    *,
    target: Target | None = None,
    proc: ProcFs | None = None,
) -> Connection:
    """Connect over TCP. On this host, connect only to ``target``; to another host, always use TLS.

    Raise SqlFailed (NotChosen for a server in a container) or BadFile.
    """
    proc = proc or ProcFs()
    if host not in _HERE:
        account = credentials.find(options_file, user)
        account = replace(account, tls=account.tls or credentials.Tls())
        return _to_another_host(host, port, account, timeout)
    if target is None:
        raise SqlFailed(f"no SQL: no server on this host listens on port {port}", remedy="innoscope targets")
    choice.require_chosen(proc, target)
    return _to_this_host(proc, target, host, port, credentials.find(options_file, user), timeout)


def _to_this_host(
    proc: ProcFs, target: Target, host: str, port: int, account: Credentials, timeout: float
) -> Connection:
    if "net" in differing_namespaces(proc, target.pid):
        raise _not_reachable(target)
    where = f"{host}:{port}"
    answer_budget = login.budget(timeout)
    with explaining(account.user, where):
        connection = _to_target(proc, target, account, answer_budget, host, account.tls)
        with _connected(host, port, answer_budget) as wire:
            wire.check_greeting()  # once the server has accepted, its socket is in the kernel's table
            peer.require_tcp(proc, target, wire, where)
            connection.log_in(wire)
    return connection


def _to_target(
    proc: ProcFs, target: Target, account: Credentials, budget: Budget, host: str, tls: Tls | None
) -> Connection:
    """Prepare a login to a server on this host or in a container. The caller then checks the server's socket.

    Checking the socket is sufficient to verify a server on this host. A server in a container must have been
    chosen, and is sent the password itself only if a certificate verifies it.
    """
    choice.require_chosen(proc, target)
    if choice.in_container(proc, target):
        known = tls is not None and tls.ca is not None
        return Connection(account, budget, verified=known, host=host, tls=tls)
    return LocalConnection(account, budget, verified=True, host=host, tls=tls)


def _to_another_host(host: str, port: int, account: Credentials, timeout: float) -> Connection:
    answer_budget = login.budget(timeout)
    with explaining(account.user, f"{host}:{port}"):
        known = account.tls is not None and account.tls.ca is not None
        connection = Connection(account, answer_budget, verified=known, host=host, tls=account.tls)
        with _connected(host, port, answer_budget) as wire:
            connection.log_in(wire)
    return connection


def _over_socket(proc: ProcFs, target: Target, path: str, account: Credentials, timeout: float) -> Connection:
    answer_budget = login.budget(timeout)
    with socket_from_here(proc, target, path) as reachable, explaining(account.user, path):
        # Traffic over a Unix socket never leaves this host, so TLS is not needed.
        connection = _to_target(proc, target, account, answer_budget, "localhost", None)
        with _closing_on_error(_wire(socket.AF_UNIX, reachable, answer_budget)) as wire:
            peer.require_unix(proc, target, wire, path)
            connection.log_in(wire)
    return connection


@contextmanager
def _connected(host: str, port: int, budget: Budget) -> Iterator[Wire]:
    """Connect over TCP to the first of the host's addresses that accepts the connection."""
    try:
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise _unreachable(error) from error
    for number, (family, _, _, _, address) in enumerate(addresses, start=1):
        try:
            wire = _wire(family, address, budget)
        except OperationalError:
            if number == len(addresses):
                raise
        else:
            wire.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            wire.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            with _closing_on_error(wire):
                yield wire
            return


def _wire(family: int, address: Any, budget: Budget) -> Wire:
    try:
        return Wire(family, address, budget)
    except OSError as error:
        raise _unreachable(error) from error


@contextmanager
def _closing_on_error(wire: Wire) -> Iterator[Wire]:
    try:
        yield wire
    except OSError as error:
        wire.close()
        raise _unreachable(error) from error
    except BaseException:
        wire.close()
        raise


def _unreachable(error: OSError) -> OperationalError:
    """Return the error that PyMySQL raises if it cannot connect."""
    failure = OperationalError(CR.CR_CONN_HOST_ERROR, f"cannot connect ({error})")
    failure.original_exception = error  # type: ignore[attr-defined]
    return failure


def _not_reachable(target: Target) -> SqlFailed:
    return SqlFailed(
        f"no SQL: cannot connect to process {target.pid}: it listens on no socket or port that we can reach",
        remedy="stacks work without SQL; a server that is starting or recovering does not listen yet",
    )


def raw_rows(connection: Connection, statement: str) -> tuple[tuple[Any, ...], ...]:
    """Execute a statement and return its rows.

    Raise errors of PyMySQL, or SqlFailed if the response is too long.
    """
    with connection.cursor() as cursor:
        cursor.execute(statement)
        return tuple(cursor.fetchall())


def rows(connection: Connection, statement: str) -> tuple[tuple[Any, ...], ...]:
    """Execute a statement and return its rows. Raise SqlFailed."""
    with explaining(as_text(connection.user), "the socket"):
        return raw_rows(connection, statement)


def table(connection: Connection, statement: str) -> tuple[tuple[str, ...], tuple[tuple[Any, ...], ...]]:
    """Execute a statement and return its column names and rows. Raise SqlFailed."""
    with explaining(as_text(connection.user), "the socket"), connection.cursor() as cursor:
        cursor.execute(statement)
        return tuple(column[0] for column in cursor.description or ()), tuple(cursor.fetchall())


def queries(target: Target, conn: Connection) -> dict[int, Query]:
    """Return ``{OS thread id in the server's pid namespace: Query}``. Raise SqlFailed.

    Statements contain no literals: each is the server's digest text or, if there is none, Innoscope's.
    """
    number = target.version or version.parse(str(getattr(conn, "server_version", "")))
    source = source_for(target.flavour, number)
    found_rows = _rows(conn, source, number)
    found: dict[int, Query] = {}
    for tid, connection_id, user, host, db, command, state, seconds, digest, info in found_rows:
        text = digest or (
            without_literals(as_text(info), flavour=target.flavour, version=number) if info else None
        )
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
            f"{as_text(conn.user)} can see only its own thread",
            remedy=source.remedy.format(user=as_text(conn.user)),
        )
    if not found:
        raise SqlFailed(
            "the server reports no statements of threads",
            remedy=source.remedy.format(user=as_text(conn.user)),
        )
    return found


def _sees_only_itself(conn: Connection, found: Mapping[int, Query]) -> bool:
    """Return whether the account lacks PROCESS: others are connected, but only our own thread is visible."""
    own: int = conn.thread_id()  # type: ignore[no-untyped-call]
    if [query.connection_id for query in found.values()] != [own]:
        return False
    connected = rows(conn, "SHOW GLOBAL STATUS LIKE 'Threads_connected'")
    return bool(connected) and int(connected[0][1]) > 1


def source_for(flavour: str, number: tuple[int, ...]) -> _Source:
    """Return the query for a server of this flavour and version. An unknown version counts as the oldest."""
    return next(source for least, source in _SOURCES[flavour] if number >= least)


def _rows(conn: Connection, source: _Source, number: tuple[int, ...]) -> tuple[tuple[Any, ...], ...]:
    try:
        return rows(conn, source.statement)
    except SqlFailed as error:
        code = error.__cause__.args[:1] if error.__cause__ else ()
        if code == (ER.BAD_FIELD_ERROR,):  # a fork or release without the column
            raise _no_thread_ids(number) from error
        raise


def _no_thread_ids(number: tuple[int, ...]) -> SqlFailed:
    shown = ".".join(map(str, number)) or "unknown version"
    return SqlFailed(
        f"this server ({shown}) does not report OS thread ids; stacks are shown without their queries",
        remedy="MySQL 5.7, MariaDB 10.3 and newer do; for this server, compare with SHOW PROCESSLIST",
    )


def as_text(value: object) -> str:
    """Return a value of a row as text, which is empty for NULL."""
    if value is None:
        return ""
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def _text(value: object) -> str | None:
    return None if value is None else as_text(value)
