"""Dirty pages on order, on a server with a small buffer pool that is never quite idle."""

from __future__ import annotations

import time
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING, Any, Final, Self

if TYPE_CHECKING:
    from collections.abc import Callable

    from servers import Server

#: Flushing starts where innodb_max_dirty_pages_pct says and not before; 5.5 knows no low-water mark.
SMALL_POOL: Final = {
    "innodb_buffer_pool_size": "16M",
    "innodb_flush_method": "O_DIRECT",
    "loose_innodb_max_dirty_pages_pct_lwm": 0,
}
POOL_PAGES: Final = 1024
#: Rows of 2 KB, seven to a page: half of the pool.
_ROWS: Final = 3500
_BETWEEN_S: Final = 0.02


class DirtyPages:
    """A table that fills half of the pool."""

    def __init__(self, server: Server) -> None:
        self._stack = ExitStack()
        self._connection = self._stack.enter_context(closing(server.connect()))

    def __enter__(self) -> Self:
        self._ask("CREATE DATABASE stained")
        self._stack.callback(self._ask, "DROP DATABASE stained")
        self._ask("CREATE TABLE stained.one (b INT) ENGINE=InnoDB")
        self._ask("INSERT INTO stained.one VALUES (0)")
        columns = "a INT AUTO_INCREMENT PRIMARY KEY, b INT, pad VARCHAR(2100)"
        self._ask(f"CREATE TABLE stained.t ({columns}) ENGINE=InnoDB")
        self._ask("INSERT INTO stained.t (b, pad) VALUES (0, REPEAT('x', 2000))")
        rows = 1
        while rows < _ROWS:
            more = min(rows, _ROWS - rows)
            self._ask(f"INSERT INTO stained.t (b, pad) SELECT b, pad FROM stained.t LIMIT {more}")
            rows += more
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def stained(self) -> int:
        """Change a few bytes on each page; how many are dirty then."""
        self._ask("UPDATE stained.t SET b = b + 1")
        return self.now()

    def now(self) -> int:
        """Dirty pages."""
        return self._status("Innodb_buffer_pool_pages_dirty")

    def share(self) -> float:
        """Dirty pages in per cent of the pool."""
        return 100 * self.now() / POOL_PAGES

    def keep_busy(self, reached: Callable[[], bool], seconds: float) -> bool:
        """Until it is reached or the time is over; a server with nothing to do would write its pages anyhow."""
        deadline = time.monotonic() + seconds
        while not reached():
            if time.monotonic() > deadline:
                return False
            self._ask("UPDATE stained.one SET b = b + 1")
            time.sleep(_BETWEEN_S)
        return True

    def flushed_per_second(self, seconds: float) -> float:
        """Over that time, or until a tenth is left."""
        began, before = time.monotonic(), self._status("Innodb_buffer_pool_pages_flushed")
        tenth = self.now() / 10
        self.keep_busy(lambda: self.now() < tenth, seconds)
        flushed = self._status("Innodb_buffer_pool_pages_flushed") - before
        return flushed / (time.monotonic() - began)

    def _status(self, name: str) -> int:
        return int(self._ask(f"SHOW GLOBAL STATUS LIKE '{name}'")[0][1])

    def _ask(self, statement: str) -> Any:
        with self._connection.cursor() as cursor:
            cursor.execute(statement)
            return cursor.fetchall()
