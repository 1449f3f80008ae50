"""Fetch InnoDB's status and the server's variables for an incident file, and redact them immediately."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from innoscope.common.errors import BadFile, InnoscopeError, SqlFailed
from innoscope.diagnose.evidence import MissingSource
from innoscope.diagnose.incident import redaction
from innoscope.metrics.collectors.sql_failures import explain
from innoscope.target import sql

if TYPE_CHECKING:
    from collections.abc import Callable

    from innoscope.target.login import Connection

    Connect = Callable[[float], Connection]

#: Timeout for each query, in seconds.
_TIMEOUT_S: Final = 2.0
#: The status is not queried if more threads than this are waiting for row locks. The server prints all
#: transactions, each with the lock that it is waiting for, while it holds kernel_mutex (5.5), lock_sys->mutex
#: and trx_sys->mutex (5.6, 5.7), or lock_sys' latch in exclusive mode (8.0, MariaDB 10.6). No row can be
#: locked while it prints. With 150 waiting threads this takes 1 to 3 ms; idle connections add nothing.
_MAX_WAITING: Final = 300
#: Maximum length of the status in characters. Servers truncate it at 1 MiB.
_LONGEST: Final = 1 << 20


@dataclass(slots=True)
class ServerFacts:
    """InnoDB's status and the server's variables.

    ``missing`` maps ``status`` or ``variables`` to the reason why it is missing.
    """

    status: str | None = None
    variables: dict[str, str] = field(default_factory=dict)
    missing: dict[str, MissingSource] = field(default_factory=dict)


def not_fetched(reason: str, words: str) -> ServerFacts:
    """Return empty facts and the reason why nothing was queried."""
    return ServerFacts(missing=dict.fromkeys(("status", "variables"), MissingSource(reason, words)))


def fetch(connect: Connect, waiting: int) -> ServerFacts:
    """Query the status and the variables, and return them.

    ``waiting`` is the number of row lock waiters; the argument of ``connect`` is a timeout in seconds.
    """
    try:
        connection = connect(_TIMEOUT_S)
    except (SqlFailed, BadFile) as error:
        why = explain(error)
        return not_fetched(why.reason, why.words)
    fetched = ServerFacts()
    try:
        _query(connection, waiting, fetched)
    finally:
        connection.abandon()  # without COM_QUIT, because a stalled server might not read it
    return fetched


def _query(connection: Connection, waiting: int, fetched: ServerFacts) -> None:
    for name, part in (("variables", _variables), ("status", _status)):
        if name == "status" and waiting > _MAX_WAITING:
            words = f"not queried: it blocks all row locks, and {waiting:,} threads wait for one"
            fetched.missing[name] = MissingSource("unsupported", words)
            continue
        try:
            part(connection, fetched)
        except InnoscopeError as error:
            why = explain(error)
            fetched.missing[name] = MissingSource(why.reason, why.words, error.remedy)
            if why.reason in ("gone", "timeout"):
                fetched.missing.setdefault("status", fetched.missing[name])
                break


def _variables(connection: Connection, fetched: ServerFacts) -> None:
    rows = sql.rows(connection, "SHOW GLOBAL VARIABLES")
    fetched.variables = redaction.variables({sql.as_text(name): sql.as_text(value) for name, value in rows})


def _status(connection: Connection, fetched: ServerFacts) -> None:
    rows = sql.rows(connection, "SHOW ENGINE INNODB STATUS")
    text = sql.as_text(rows[0][-1]) if rows else ""
    fetched.status = redaction.status(text)[:_LONGEST]
