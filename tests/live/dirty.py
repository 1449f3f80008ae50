"""Create dirty pages on a server with a small buffer pool."""

from __future__ import annotations

import time
from contextlib import ExitStack, closing, contextmanager
from typing import TYPE_CHECKING, Any, Final, Self

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from servers import Server

#: With these options, innodb_max_dirty_pages_pct triggers flushing, and a lack of free pages or redo space
#: never does. The flushing rate depends only on the last second. (5.5 ignores the ``loose`` options.) 9.7
#: also flushes at the rate at which redo is written, but io_capacity is so small that some pages stay dirty.
SMALL_POOL: Final[dict[str, str | int | None]] = {
    "innodb_buffer_pool_size": "16M",
    "innodb_flush_method": "O_DIRECT",
    "loose_innodb_max_dirty_pages_pct_lwm": 0,
    "loose_innodb_lru_scan_depth": 100,
    "loose_innodb_flushing_avg_loops": 1,
    "loose_innodb_redo_log_capacity": "1G",
    "innodb_io_capacity": 200,
    "loose_innodb_io_capacity_max": 400,
}
POOL_PAGES: Final = 1024
_UNWANTED: Final = {
    "mysql": ("innodb_max_dirty_pages_pct", "0"),
    "mariadb": ("innodb_max_dirty_pages_pct_lwm", "0.001"),
}
#: Number of 2 KB rows. A page holds seven, so these rows fill half of the pool.
_ROWS: Final = 3500
_BETWEEN_S: Final = 0.05
#: A statement that generates some redo: 5.6 flushes old pages only while new redo is written.
_SOME_REDO: Final = "UPDATE stained.one SET b = b + 1, pad = REPEAT(CHAR(65 + b % 26), 3000)"


class DirtyPages:
    """Context manager: a table that fills half of the buffer pool."""

    def __init__(self, server: Server) -> None:
        self._flavour = server.spec.flavour
        self._stack = ExitStack()
        self._connection = self._stack.enter_context(closing(server.connect()))

    def __enter__(self) -> Self:
        self._ask("CREATE DATABASE stained")
        self._stack.callback(self._ask, "DROP DATABASE stained")
        self._ask("CREATE TABLE stained.one (b INT, pad VARCHAR(3000)) ENGINE=InnoDB")
        self._ask("INSERT INTO stained.one VALUES (0, ''), (0, ''), (0, '')")
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
        """Change a few bytes on each page; return the number of dirty pages."""
        self._ask("UPDATE stained.t SET b = b + 1")
        return self.now()

    def now(self) -> int:
        """Return the number of dirty pages."""
        return self._status("Innodb_buffer_pool_pages_dirty")

    def share(self) -> float:
        """Return the dirty pages as a percentage of the pool."""
        return 100 * self.now() / POOL_PAGES

    def keep_busy(self, reached: Callable[[], bool], seconds: float) -> bool:
        """Keep writing redo until the condition holds; return False on timeout.

        An idle server would flush dirty pages even below the limit under test.
        """
        deadline = time.monotonic() + seconds
        while not reached():
            if time.monotonic() > deadline:
                return False
            self._ask(_SOME_REDO)
            time.sleep(_BETWEEN_S)
        return True

    @contextmanager
    def unwanted(self) -> Iterator[None]:
        """Make the server flush all dirty pages at the rate of innodb_io_capacity while the block runs.

        An idle MariaDB flushes at this rate above the low-water mark, and faster above
        innodb_max_dirty_pages_pct.
        """
        name, value = _UNWANTED[self._flavour]
        [(_, usual)] = self._ask(f"SHOW GLOBAL VARIABLES LIKE '{name}'")
        self._ask(f"SET GLOBAL {name} = {value}")
        try:
            yield
        finally:
            self._ask(f"SET GLOBAL {name} = {usual}")

    def flushed_per_second(self, seconds: float) -> float:
        """Measure pages flushed per second, over ``seconds`` or until a tenth of the dirty pages is left."""
        before = self._status("Innodb_buffer_pool_pages_flushed")
        tenth, began = self.now() / 10, time.monotonic()
        with self.unwanted():
            while self.now() >= tenth and time.monotonic() < began + seconds:
                time.sleep(_BETWEEN_S)
            flushed = self._status("Innodb_buffer_pool_pages_flushed") - before
            return flushed / (time.monotonic() - began)

    def _status(self, name: str) -> int:
        return int(self._ask(f"SHOW GLOBAL STATUS LIKE '{name}'")[0][1])

    def _ask(self, statement: str) -> Any:
        with self._connection.cursor() as cursor:
            cursor.execute(statement)
            return cursor.fetchall()
