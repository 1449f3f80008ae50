"""A server that has much to do before it can stop."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from servers import Server

#: Purge waits for a transaction that we hold open.
OPTIONS: dict[str, str | int | None] = {
    "innodb_fast_shutdown": 0,
    "innodb_buffer_pool_size": "16M",
    "innodb_flush_method": "O_DIRECT",
}
DOUBLINGS = 16


def make_backlog(server: Server, doublings: int = DOUBLINGS) -> None:
    """Rows, all of them changed and deleted while a transaction still sees them: purge has to remove them."""
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
        with closing(server.connect()) as reader, reader.cursor() as sees:
            _see(sees)
            cursor.execute("DELETE FROM backlog.t")


def _see(cursor: Any) -> None:
    cursor.execute("START TRANSACTION WITH CONSISTENT SNAPSHOT")
    cursor.execute("SELECT COUNT(*) FROM backlog.t")
