"""Lock a table of a server."""

from __future__ import annotations

from contextlib import closing, contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from servers import Server


@contextmanager
def table_lock(node: Server, database: str, table: str) -> Iterator[None]:
    """Hold ``LOCK TABLES … READ`` on a table while the block runs."""
    with closing(node.connect(database=database)) as holder, holder.cursor() as cursor:
        cursor.execute(f"LOCK TABLES {table} READ")
        yield
        cursor.execute("UNLOCK TABLES")
