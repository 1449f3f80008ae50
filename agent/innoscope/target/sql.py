"""Connect to a server over SQL, and read the statements that its threads are executing.

Each step has a timeout (the lookup of a host name has the resolver's), and no statement here can wait
for a metadata lock.
"""

from __future__ import annotations

import socket
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from msgspec import Meta
from pymysql.constants import CR, ER
from pymysql.err import OperationalError

from innoscope.common.data import catalog_path
from innoscope.common.errors import SqlFailed
from innoscope.common.schema import Entry, ServerEntry, read_yaml
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
    from pathlib import Path

    from innoscope.target.credentials import Credentials, TlsOptions
    from innoscope.target.model import Target
    from innoscope.target.unanswered import Unanswered
    from innoscope.target.wire import Budget

_HERE = ("127.0.0.1", "::1", "localhost")


#: Remedies by the value of ``ThreadQuery.needs``.
_REMEDIES: Final = {
    "performance_schema": f"start the server with performance_schema=ON, and {GRANT_SCHEMA}",
    "process": GRANT,
}


class ThreadQuery(ServerEntry, frozen=True, kw_only=True):
    """A query that returns the statement of each OS thread, and the servers on which it works."""

    sql: Annotated[str, Meta(min_length=1)]
    needs: Literal["process", "performance_schema"]


class ThreadQueriesFile(Entry, frozen=True):
    """The contents of thread_queries.yaml. The last query is for all servers."""

    version: Literal[1]
    queries: Annotated[tuple[ThreadQuery, ...], Meta(min_length=1)]

    def __post_init__(self) -> None:
        """Raise ValueError if a server may have no query."""
        if self.queries[-1].ranges:
            raise ValueError("the last query must be for all servers")


@cache
def default_queries() -> tuple[ThreadQuery, ...]:
    """Return the queries of the installed catalog."""
    return load()


def load(path: Path | None = None) -> tuple[ThreadQuery, ...]:
    """Return the queries in the file. Raise BadFile if it is invalid."""
    return read_yaml(path or catalog_path("thread_queries.yaml"), ThreadQueriesFile).queries


def connect(
    target: Target,
    options_file: str | None = None,
    user: str | None = None,
    timeout: float = 1.0,
    *,
    proc: ProcFs | None = None,
    unanswered: Unanswered | None = None,
) -> Connection:
    """Connect over the target's Unix socket, else over TCP on 127.0.0.1 in our own network namespace.

    Nothing is sent if another process listens on the socket or port. ``timeout`` is the limit in
    seconds for connecting and for each complete response. A caller that connects repeatedly passes the same
    ``unanswered`` each time. Raise SqlFailed if the connection fails (NotChosen if the server is in a
    container and has not been chosen), or BadFile if the option file cannot be used.
    """
    proc = proc or ProcFs()
    choice.require_chosen(proc, target)
    account = credentials.find(options_file, user)
    if unanswered is not None:
        unanswered.check()
    if target.socket is not None:
        return _over_socket(proc, target, target.socket, account, login.budget(timeout, unanswered))
    if target.port is not None:
        answer_budget = login.budget(timeout, unanswered)
        return _to_this_host(proc, target, "127.0.0.1", target.port, account, answer_budget)
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
    unanswered: Unanswered | None = None,
) -> Connection:
    """Connect over TCP. On this host, connect only to ``target``; to another host, always use TLS.

    Raise the same errors as ``connect``.
    """
    proc = proc or ProcFs()
    if unanswered is not None:
        unanswered.check()
    answer_budget = login.budget(timeout, unanswered)
    if host not in _HERE:
        account = credentials.find(options_file, user)
        account = replace(account, tls=account.tls or credentials.TlsOptions())
        return _to_another_host(host, port, account, answer_budget)
    if target is None:
        raise SqlFailed(f"no SQL: no server on this host listens on port {port}", remedy="innoscope targets")
    choice.require_chosen(proc, target)
    return _to_this_host(proc, target, host, port, credentials.find(options_file, user), answer_budget)


def _to_this_host(
    proc: ProcFs, target: Target, host: str, port: int, account: Credentials, answer_budget: Budget
) -> Connection:
    if "net" in differing_namespaces(proc, target.pid):
        raise _not_reachable(target)
    where = f"{host}:{port}"
    with explaining(account.user, where):
        connection = _to_target(proc, target, account, answer_budget, host, account.tls)
        with _connected(host, port, answer_budget) as wire:
            wire.check_greeting()  # once the server has accepted, its socket is in the kernel's table
            peer.require_tcp(proc, target, wire, where)
            connection.log_in(wire, where)
    return connection


def _to_target(
    proc: ProcFs, target: Target, account: Credentials, budget: Budget, host: str, tls: TlsOptions | None
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


def _to_another_host(host: str, port: int, account: Credentials, answer_budget: Budget) -> Connection:
    where = f"{host}:{port}"
    with explaining(account.user, where):
        known = account.tls is not None and account.tls.ca is not None
        connection = Connection(account, answer_budget, verified=known, host=host, tls=account.tls)
        with _connected(host, port, answer_budget) as wire:
            connection.log_in(wire, where)
    return connection


def _over_socket(
    proc: ProcFs, target: Target, path: str, account: Credentials, answer_budget: Budget
) -> Connection:
    with socket_from_here(proc, target, path) as reachable, explaining(account.user, path):
        # Traffic over a Unix socket never leaves this host, so TLS is not needed.
        connection = _to_target(proc, target, account, answer_budget, "localhost", None)
        with _closing_on_error(_wire(socket.AF_UNIX, reachable, answer_budget)) as wire:
            peer.require_unix(proc, target, wire, path)
            connection.log_in(wire, path)
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
    """Execute a statement and return its rows.

    Raise SqlFailed if the statement fails or the response is invalid.
    """
    with explaining(as_text(connection.user), connection.where):
        return raw_rows(connection, statement)


def table(connection: Connection, statement: str) -> tuple[tuple[str, ...], tuple[tuple[Any, ...], ...]]:
    """Execute a statement and return its column names and rows.

    Raise SqlFailed if the statement fails or the response is invalid.
    """
    with explaining(as_text(connection.user), connection.where), connection.cursor() as cursor:
        cursor.execute(statement)
        return tuple(column[0] for column in cursor.description or ()), tuple(cursor.fetchall())


def queries(target: Target, conn: Connection) -> dict[int, Query]:
    """Return ``{OS thread id in the server's pid namespace: Query}``.

    Raise SqlFailed if the query fails, or if the account cannot see the statements of other threads.

    Statements contain no literals: each is the server's digest text or, if there is none, Innoscope's.
    """
    number = target.version or version.parse(str(getattr(conn, "server_version", "")))
    query = query_for(target.flavour, number)
    remedy = _REMEDIES[query.needs].format(user=as_text(conn.user))
    found_rows = _rows(conn, query, number)
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
            seconds if isinstance(seconds, int) else None,  # a hostile server may send text
            _text(text),
        )
    if _sees_only_itself(conn, found):
        raise SqlFailed(
            f"{as_text(conn.user)} can see only its own thread",
            remedy=remedy,
        )
    if not found:
        raise SqlFailed(
            "the server reports no statements of threads",
            remedy=remedy,
        )
    return found


def _sees_only_itself(conn: Connection, found: Mapping[int, Query]) -> bool:
    """Return whether the account lacks PROCESS: others are connected, but only our own thread is visible."""
    own: int = conn.thread_id()  # type: ignore[no-untyped-call]
    if [query.connection_id for query in found.values()] != [own]:
        return False
    connected = rows(conn, "SHOW GLOBAL STATUS LIKE 'Threads_connected'")
    return bool(connected) and int(connected[0][1]) > 1


def query_for(flavour: str, number: tuple[int, ...]) -> ThreadQuery:
    """Return the query for a server of this flavour and version. An unknown version counts as the oldest."""
    return next(query for query in default_queries() if query.fits(flavour, number))


def _rows(conn: Connection, query: ThreadQuery, number: tuple[int, ...]) -> tuple[tuple[Any, ...], ...]:
    try:
        return rows(conn, query.sql)
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
