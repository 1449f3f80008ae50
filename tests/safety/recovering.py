"""Provide options and data for a crash recovery that takes several seconds."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from servers import Server

#: Options for a redo log that holds all changes, so that their pages are not flushed before the crash.
ROOMY: dict[str, str | int | None] = {"innodb_log_file_size": "128M", "innodb_flush_method": "O_DIRECT"}
#: Options that split recovery into many small batches, each of which reads and writes nearly all pages.
TIGHT = {**ROOMY, "innodb_buffer_pool_size": "8M"}
#: The same two sets of options for MySQL 9, where a different option sets the size of the redo log.
ROOMY_9 = {"innodb_redo_log_capacity": "256M", "innodb_flush_method": "O_DIRECT"}
TIGHT_9 = {**ROOMY_9, "innodb_buffer_pool_size": "8M"}
DOUBLINGS = 15


def make_redo(server: Server, doublings: int = DOUBLINGS) -> None:
    """Insert rows, and update them in random order: 30 MB by default. Each doubling doubles the amount."""
    with closing(server.connect()) as connection, connection.cursor() as cursor:
        cursor.execute("CREATE DATABASE crash")
        cursor.execute(
            "CREATE TABLE crash.t (a INT AUTO_INCREMENT PRIMARY KEY, b INT, pad VARCHAR(500)) ENGINE=InnoDB"
        )
        cursor.execute("INSERT INTO crash.t (b, pad) VALUES (0, REPEAT('x', 500))")
        for _ in range(doublings):
            cursor.execute("INSERT INTO crash.t (b, pad) SELECT b, pad FROM crash.t")
        for _ in range(3):
            cursor.execute("UPDATE crash.t SET b = b + 1 ORDER BY RAND()")
