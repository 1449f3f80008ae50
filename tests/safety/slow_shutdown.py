"""Provide options and data for a shutdown that takes several seconds."""

from __future__ import annotations

from contextlib import closing, contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from servers import Server

#: Options for a full purge at shutdown, with a small buffer pool.
OPTIONS: dict[str, str | int | None] = {
    "innodb_fast_shutdown": 0,
    "innodb_buffer_pool_size": "16M",
    "innodb_flush_method": "O_DIRECT",
}
DOUBLINGS = 16


def make_backlog(server: Server, doublings: int = DOUBLINGS) -> None:
    """Delete many rows while a transaction still reads them, so that purge has to remove them afterwards."""
    with backlog(server, doublings):
        pass


@contextmanager
def backlog(server: Server, doublings: int = DOUBLINGS) -> Iterator[None]:
    """Delete many rows. A transaction reads them until the block or the server ends; then purge can begin."""
    with closing(server.connect()) as connection, connection.cursor() as cursor:
        cursor.execute("CREATE DATABASE backlog")
        cursor.execute(
            "CREATE TABLE backlog.t (a INT AUTO_INCREMENT PRIMARY KEY, b INT, c VARCHAR(100), KEY (b),"
            " KEY (c)) ENGINE=InnoDB"
        )
        cursor.execute("INSERT INTO backlog.t (b, c) VALUES (0, REPEAT('x', 40))")
        for _ in range(doublings):
            cursor.execute(
                "INSERT INTO backlog.t (b, c) SELECT RAND() * 1e9, LEFT(CONCAT(RAND(), c), 90) FROM backlog.t"
            )
        with closing(server.connect()) as reader, reader.cursor() as snapshot:
            snapshot.execute("START TRANSACTION WITH CONSISTENT SNAPSHOT")
            snapshot.execute("SELECT COUNT(*) FROM backlog.t")
            cursor.execute("DELETE FROM backlog.t")
            yield
