"""A fake connection to a server, which returns prepared rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class FakeConnection:
    """A connection that is also its own cursor. ``answers`` maps statements to their columns and rows."""

    user = b"app"
    where = "/run/mysqld.sock"

    def __init__(self, answers: Mapping[str, tuple[Sequence[str], Sequence[tuple[Any, ...]]]]) -> None:
        self.statements: list[str] = []
        self.closed = False
        self._answers = answers
        self._columns: Sequence[str] = ()
        self._rows: Sequence[tuple[Any, ...]] = ()

    def cursor(self) -> FakeConnection:
        return self

    def __enter__(self) -> FakeConnection:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def execute(self, statement: str) -> None:
        self.statements.append(statement)
        self._columns, self._rows = self._answers.get(statement, ((), ()))

    @property
    def description(self) -> list[tuple[str]]:
        return [(name,) for name in self._columns]

    def fetchall(self) -> list[tuple[Any, ...]]:
        return list(self._rows)

    def abandon(self) -> None:
        self.closed = True
