"""Tables for the incidents, made fast."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from servers import Server


def sql(server: Server, *statements: str) -> None:
    """Run them on one connection, in autocommit."""
    with contextlib.closing(server.connect()) as connection, connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)


def doubled(table: str, columns: str, values: str, rows: int) -> Iterator[str]:
    """Statements that fill a table with so many rows; the values are worked out for each row."""
    yield f"INSERT INTO {table} ({columns}) VALUES ({values})"
    have = 1
    while have < rows:
        more = min(have, rows - have)
        yield f"INSERT INTO {table} ({columns}) SELECT {values} FROM (SELECT 1 FROM {table} LIMIT {more}) old"
        have += more
