"""Fill tables for the incidents."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


def doubled(table: str, columns: str, values: str, rows: int) -> Iterator[str]:
    """Yield statements that fill a table with ``rows`` rows; ``values`` is evaluated for each row."""
    yield f"INSERT INTO {table} ({columns}) VALUES ({values})"
    have = 1
    while have < rows:
        more = min(have, rows - have)
        yield f"INSERT INTO {table} ({columns}) SELECT {values} FROM (SELECT 1 FROM {table} LIMIT {more}) old"
        have += more
