"""Run the queries of ``probes/catalog/questions.yaml`` once, with timeouts, and remove literals."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from innoscope.common.data import catalog_path, read_yaml, reading
from innoscope.common.errors import BadFile, InnoscopeError, SqlFailed
from innoscope.diagnose.evidence import Missing, Statement
from innoscope.metrics.collectors.sql_failures import explain
from innoscope.target import sql
from innoscope.target.fingerprint import fingerprint

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from innoscope.target.login import Connection
    from innoscope.target.model import Target

    Rows = tuple[Mapping[str, str], ...]

_TEXT: Final = "text"
_PROCESSES: Final = "processes"
#: Limits the waiting time of our queries, whatever the server's defaults are.
_SESSION: Final = ("lock_wait_timeout = 1", "max_execution_time = 500", "max_statement_time = 0.5")


@dataclass(frozen=True, slots=True)
class Question:
    """One query: the statement for each generation of servers, and the names of its columns.

    Where a server decides which columns there are (SHOW …), its ``named`` maps those that are wanted to ours.
    """

    name: str
    columns: tuple[str, ...]
    servers: tuple[Mapping[str, Any], ...]
    crowd: int | None

    def asked_of(self, flavour: str, version: tuple[int, ...]) -> Mapping[str, Any] | None:
        """Return the statement (``sql``) for that server, with ``named`` if needed; None if it has none."""
        for one in self.servers:
            known = one["flavour"] == flavour and _number(one["from"]) <= version
            if known and ("below" not in one or version < _number(one["below"])):
                return one
        return None


def _number(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split("."))


@cache
def default_questions() -> tuple[Question, ...]:
    """Return the queries of the installed catalog."""
    return load()


def load(path: Path | None = None) -> tuple[Question, ...]:
    """Read the file. Raises BadFile."""
    path = path or catalog_path("questions.yaml")
    data = read_yaml(path)
    with reading(path):
        return tuple(
            Question(name, tuple(body["columns"]), tuple(body["servers"]), body.get("crowd"))
            for name, body in data["questions"].items()
        )


class SqlAnswers:
    """The result of the queries: ``answers`` by question, ``missing`` by ``sql.QUESTION``."""

    def __init__(self) -> None:
        self.answers: dict[str, Rows] = {}
        self.missing: dict[str, Missing] = {}

    @property
    def statements(self) -> tuple[Statement, ...]:
        """Return the process list, which ``query_all`` has checked."""
        return tuple(map(_statement, self.answers.get(_PROCESSES, ())))


def _statement(row: Mapping[str, str]) -> Statement:
    """Parse a row of the process list. Raises ValueError or OverflowError if a number is malformed."""
    return Statement(
        int(row["connection"]), row["user"], row["host"].partition(":")[0], row["command"],
        row["state"], int(float(row["seconds"] or 0)), row["text"],
    )  # fmt: skip


def query_all(target: Target, connect: Callable[[], Connection], waiting: float) -> SqlAnswers:
    """Run all queries one after the other; ``waiting`` is the number of threads that wait for row locks."""
    asked = SqlAnswers()
    try:
        connection = connect()
    except (SqlFailed, BadFile) as error:
        asked.missing = {f"sql.{question.name}": _missing(error) for question in default_questions()}
        return asked
    try:
        for assignment in _SESSION:
            with suppress(SqlFailed):
                sql.rows(connection, f"SET SESSION {assignment}")
        for name, answer in _answers(target, connection, waiting):
            if isinstance(answer, Missing):
                asked.missing[f"sql.{name}"] = answer
            else:
                asked.answers[name] = answer
    finally:
        connection.abandon()  # a stalled server may not read a COM_QUIT
    return asked


def _answers(target: Target, connection: Connection, waiting: float) -> Iterator[tuple[str, Rows | Missing]]:
    for question in default_questions():
        asked = question.asked_of(target.flavour, target.version)
        if asked is None:
            yield question.name, Missing("unsupported", "not available on this server")
        elif question.crowd is not None and waiting > question.crowd:
            words = f"not queried, because it is too expensive while {waiting:,.0f} threads wait"
            yield question.name, Missing("unsupported", words)
        else:
            try:
                columns, rows = sql.answer(connection, asked["sql"])
            except InnoscopeError as error:
                yield question.name, _missing(error)
                if explain(error).reason in ("gone", "timeout"):
                    return
            else:
                names = _names(question, asked, columns)
                yield question.name, _checked(question.name, tuple(_named(names, row) for row in rows))


def _checked(name: str, rows: Rows) -> Rows | Missing:
    """Return the rows, or why they cannot be used, because the peer may not be a real server."""
    try:
        if name == _PROCESSES:
            list(map(_statement, rows))
    except (ValueError, OverflowError):
        return Missing("error", "the server's process list has text where numbers should be")
    return rows


def _names(question: Question, asked: Mapping[str, Any], columns: tuple[str, ...]) -> tuple[str | None, ...]:
    """Return our name for each column of the answer; None for columns that are not used."""
    named: Mapping[str, str] | None = asked.get("named")
    return question.columns if named is None else tuple(named.get(column) for column in columns)


def _named(columns: tuple[str | None, ...], row: tuple[Any, ...]) -> Mapping[str, str]:
    """Return the row by column name, with literals removed from statements."""
    named = {column: _text(value) for column, value in zip(columns, row, strict=True) if column is not None}
    if named.get(_TEXT):
        named[_TEXT] = fingerprint(named[_TEXT])
    return named


def _text(value: object) -> str:
    if value is None:
        return ""
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def _missing(error: InnoscopeError) -> Missing:
    failed = explain(error)
    return Missing(failed.reason, failed.words, error.remedy)
