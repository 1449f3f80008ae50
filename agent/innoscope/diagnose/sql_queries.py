"""Run the queries in ``probes/catalog/questions.yaml`` once.

Literals are removed from the statements and the replication errors in the results.
"""

from __future__ import annotations

from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from msgspec import Meta

from innoscope.common.data import catalog_path
from innoscope.common.errors import BadFile, InnoscopeError, SqlFailed
from innoscope.common.schema import Entry, ServerEntry, read_yaml
from innoscope.diagnose import error_messages
from innoscope.diagnose.evidence import ConnectionActivity, MissingSource
from innoscope.metrics.collectors.sql_failures import explain
from innoscope.target import sql
from innoscope.target.digests import digest, without_literals

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from innoscope.target.login import Connection
    from innoscope.target.model import Target

    Rows = tuple[Mapping[str, str], ...]

#: Functions that remove literals, keyed by the column to which they apply.
_WITHOUT_LITERALS: Final[Mapping[str, Callable[[str], str]]] = {
    "text": without_literals,
    "applier_message": error_messages.of_applier,
    "receiver_message": error_messages.of_receiver,
}
_PROCESSES: Final = "processes"
#: Reasons for a missing result after which no further query is sent, because the server does not reply.
_NO_REPLY: Final = ("gone", "timeout")
#: The queries that find blockers, as keys of ``SqlAnswers.missing``.
_FOR_BLOCKERS: Final = frozenset(
    f"sql.{name}" for name in ("transactions", "row_lock_waits", _PROCESSES, "metadata_locks")
)
#: Maximum length of a statement in the results (questions.yaml).
_TRUNCATED: Final = 1_024
#: Session variables that limit how long our queries wait and run, regardless of the server's defaults.
#: INNODB_TRX reports times in the system time zone (field_store_time_t, i_s.cc of 5.6 to 9.x), so NOW() must
#: use the same one.
_SESSION: Final = (
    "lock_wait_timeout = 1", "max_execution_time = 500", "max_statement_time = 0.5", "time_zone = SYSTEM",
)  # fmt: skip


class ServerQuery(ServerEntry, frozen=True, kw_only=True):
    """The SQL statement of a query for a range of server versions.

    ``named`` maps the server's column names to internal names. Without ``named``, the result must have
    exactly the query's columns, in the same order. ``enable`` is the setting that makes the server record
    the rows.
    """

    sql: str
    named: dict[str, str] | None = None
    enable: str = ""


class DiagnosticQuery(Entry, frozen=True):
    """A diagnostic query: its result columns, and its SQL statement for each range of server versions.

    The query is skipped if more than ``crowd`` threads are waiting for row locks.
    """

    columns: tuple[str, ...]
    servers: Annotated[tuple[ServerQuery, ...], Meta(min_length=1)]
    crowd: int | None = None

    def __post_init__(self) -> None:
        """Raise ValueError unless each server's ``named`` maps only to columns of the query."""
        for server in self.servers:
            if unknown := set((server.named or {}).values()) - set(self.columns):
                raise ValueError(f"named: {min(unknown)!r} is not among the columns")

    def for_server(self, flavour: str, version: tuple[int, ...]) -> ServerQuery | None:
        """Return the statement for a server; None if there is none."""
        return next((one for one in self.servers if one.fits(flavour, version)), None)


class QuestionsFile(Entry, frozen=True):
    """The contents of questions.yaml."""

    version: Literal[1]
    questions: dict[str, DiagnosticQuery]


@cache
def default_queries() -> dict[str, DiagnosticQuery]:
    """Return the queries of the installed catalog by name."""
    return load()


def load(path: Path | None = None) -> dict[str, DiagnosticQuery]:
    """Return the queries in the file by name. Raise BadFile if it is invalid."""
    return read_yaml(path or catalog_path("questions.yaml"), QuestionsFile).questions


class SqlAnswers:
    """The results of the queries.

    ``answers`` maps a query's name to its rows; ``missing`` maps ``sql.NAME`` to the reason why the query has
    no result.
    """

    def __init__(self) -> None:
        self.answers: dict[str, Rows] = {}
        self.missing: dict[str, MissingSource] = {}

    @property
    def statements(self) -> tuple[ConnectionActivity, ...]:
        """Return the statements in the process list. ``query_all`` has already validated their numbers."""
        return tuple(map(_statement, self.answers.get(_PROCESSES, ())))

    @property
    def lacks_blockers(self) -> bool:
        """Return whether the queries for blockers are incomplete because the server did not reply."""
        return any(self.missing[name].reason in _NO_REPLY for name in _FOR_BLOCKERS & self.missing.keys())

    def completed_by(self, later: SqlAnswers) -> SqlAnswers:
        """Return these results, with those of a later attempt for the queries that have none here."""
        completed = SqlAnswers()
        completed.answers = later.answers | self.answers
        for name, first in self.missing.items():
            last = later.missing.get(name)
            if last is not None:
                completed.missing[name] = first if last.reason in _NO_REPLY else last
        return completed


def _statement(row: Mapping[str, str]) -> ConnectionActivity:
    """Parse a row of the process list. Raise ValueError or OverflowError if a number is malformed."""
    return ConnectionActivity(
        int(row["connection"]), row["user"], row["host"].partition(":")[0], row["command"],
        row["state"], int(float(row["seconds"] or 0)), row["text"], digest=row.get("digest"),
    )  # fmt: skip


def query_all(target: Target, connect: Callable[[], Connection], waiting: float) -> SqlAnswers:
    """Run all queries one after the other, and return their results.

    After a query that timed out or lost the connection, the rest are not sent, and are missing for the same
    reason. ``waiting`` is the number of threads waiting for row locks.
    """
    asked = SqlAnswers()
    try:
        connection = connect()
    except (SqlFailed, BadFile) as error:
        asked.missing = {f"sql.{name}": _missing(error) for name in default_queries()}
        return asked
    try:
        for assignment in _SESSION:
            with suppress(SqlFailed):
                sql.rows(connection, f"SET SESSION {assignment}")
        for name, answer in _answers(target, connection, waiting):
            if isinstance(answer, MissingSource):
                asked.missing[f"sql.{name}"] = answer
            else:
                asked.answers[name] = answer
    finally:
        connection.abandon()  # without COM_QUIT, because a stalled server might not read it
    return asked


def _answers(
    target: Target, connection: Connection, waiting: float
) -> Iterator[tuple[str, Rows | MissingSource]]:
    """Yield each query's result. After a query without an answer, the remaining ones are not sent."""
    silent: MissingSource | None = None
    for name, query in default_queries().items():
        asked = query.for_server(target.flavour, target.version)
        if asked is None:
            yield name, MissingSource("unsupported", "not available on this server")
        elif silent is not None:
            yield name, silent
        elif query.crowd is not None and waiting > query.crowd:
            words = f"not queried, because it is too expensive while {waiting:,.0f} threads wait"
            yield name, MissingSource("unsupported", words)
        else:
            try:
                columns, rows = sql.table(connection, asked.sql)
            except InnoscopeError as error:
                missing = _missing(error)
                if missing.reason in _NO_REPLY:
                    silent = missing
                yield name, missing
            else:
                names = _names(query, asked, columns)
                yield name, _checked(name, tuple(_named(target, names, row) for row in rows))


def _checked(name: str, rows: Rows) -> Rows | MissingSource:
    """Return the rows if they are valid, else the reason why they are not. The peer may be a fake server."""
    try:
        if name == _PROCESSES:
            list(map(_statement, rows))
    except (ValueError, OverflowError):
        return MissingSource("error", "malformed process list: text instead of a number")
    return rows


def _names(query: DiagnosticQuery, asked: ServerQuery, columns: tuple[str, ...]) -> tuple[str | None, ...]:
    """Return the internal name of each result column; None for columns that are not needed."""
    return query.columns if asked.named is None else tuple(map(asked.named.get, columns))


def _named(target: Target, columns: tuple[str | None, ...], row: tuple[Any, ...]) -> Mapping[str, str]:
    """Return the row keyed by column name, with literals removed from statements and error messages.

    For a statement that is not truncated, its digest is added.
    """
    named = {
        column: sql.as_text(value) for column, value in zip(columns, row, strict=True) if column is not None
    }
    if (text := named.get("text")) and len(text) < _TRUNCATED:
        raw = text.encode(errors="surrogateescape")
        named["digest"] = digest(raw, flavour=target.flavour, version=target.version).id
    for column, redacted in _WITHOUT_LITERALS.items():
        if named.get(column):
            named[column] = redacted(named[column])
    return named


def _missing(error: InnoscopeError) -> MissingSource:
    failed = explain(error)
    words = failed.words.removesuffix(f" ({error.remedy})")  # the remedy is shown on its own line
    return MissingSource(failed.reason, words, error.remedy)
