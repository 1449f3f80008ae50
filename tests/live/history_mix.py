"""A mix of statements whose rate is limited, and whose durations the clients choose and measure.

Durations and pauses are random, so that they do not coincide with the sensor's interval. The mix uses at
most a third of a core.
"""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections import defaultdict
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from collections.abc import Callable

    from servers import Server

DATABASE = "truth"
ROW_LOCK = "UPDATE locked SET b = b + 1 WHERE a = 1"
METADATA_LOCK = "SELECT COUNT(*) FROM guarded"
CPU = "SELECT BENCHMARK({}, MD5('x'))"
COMMIT = "INSERT INTO log (b) VALUES (REPEAT('x', {}))"
#: The text of each statement's digest.
TEXTS = {
    "row lock": "UPDATE LOCKED SET `b` = `b` + ? WHERE `a` = ?",
    "metadata lock": "SELECT COUNT ( * ) FROM `guarded`",
    "CPU": "SELECT `BENCHMARK` ( ? , `MD5` (?) )",
    "commit": "INSERT INTO `log` ( `b` ) VALUES ( REPEAT (...) )",
}
WAITERS, READERS, BURNERS, WRITERS = 3, 2, 2, 4
#: The server's options. A group commit waits up to 60 ms for more transactions to join.
COMMITS: dict[str, str | int | None] = {"log_bin": "binlog", "binlog_group_commit_sync_delay": 60_000}
#: Minimum and maximum seconds for which a lock is held.
HELD_S = (0.1, 0.5)
#: Minimum and maximum seconds for which a statement uses a CPU.
BURN_S = (0.05, 0.15)
_SETUP = (
    f"CREATE DATABASE {DATABASE}",
    f"CREATE TABLE {DATABASE}.locked (a INT PRIMARY KEY, b INT) ENGINE=InnoDB",
    f"INSERT INTO {DATABASE}.locked VALUES (1, 0)",
    f"CREATE TABLE {DATABASE}.guarded (a INT PRIMARY KEY) ENGINE=InnoDB",
    f"CREATE TABLE {DATABASE}.log (a INT AUTO_INCREMENT PRIMARY KEY, b VARCHAR(400)) ENGINE=InnoDB",
)


class Mix:
    """Context manager: run the mix until the block ends. ``seconds`` is the total time by kind."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._ended = threading.Event()
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._failures: list[BaseException] = []
        self.seconds: dict[str, float] = defaultdict(float)

    def __enter__(self) -> Self:
        self._server.sql(*_SETUP)
        per_second = self._benchmarks_per_second()
        self._hold(("BEGIN", "SELECT * FROM locked WHERE a = 1 FOR UPDATE"), "COMMIT")
        self._hold(("LOCK TABLES guarded WRITE",), "UNLOCK TABLES")
        for name, number, statement, pause in (
            ("row lock", WAITERS, lambda _: ROW_LOCK, (0.2, 0.6)),
            ("metadata lock", READERS, lambda _: METADATA_LOCK, (0.2, 0.6)),
            ("CPU", BURNERS, lambda dice: CPU.format(int(per_second * dice.uniform(*BURN_S))), (0.5, 1.0)),
            ("commit", WRITERS, lambda dice: COMMIT.format(dice.randint(1, 400)), (0.1, 0.3)),
        ):
            for _ in range(number):
                self._repeat(name, statement, pause)
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join()
        assert self._failures == []

    def _benchmarks_per_second(self) -> float:
        """Return how many times per second the server computes the benchmarked function on an idle core."""
        fastest = float("inf")
        for _ in range(5):
            began = time.perf_counter()
            self._server.sql(CPU.format(100_000))
            fastest = min(fastest, time.perf_counter() - began)
        return 100_000 / fastest

    def _hold(self, take: tuple[str, ...], release: str) -> None:
        """Repeatedly take a lock and hold it."""

        def run(cursor: Any, dice: random.Random) -> None:
            for statement in take:
                cursor.execute(statement)
            self._ended.wait(dice.uniform(*HELD_S))
            cursor.execute(release)
            self._ended.wait(dice.uniform(0.05, 0.2))

        self._start(run)

    def _repeat(
        self, name: str, statement: Callable[[random.Random], str], pause: tuple[float, float]
    ) -> None:
        """Repeatedly run a statement, and add up its time."""

        def run(cursor: Any, dice: random.Random) -> None:
            began = time.perf_counter()
            cursor.execute(statement(dice))
            seconds = time.perf_counter() - began
            with self._lock:
                self.seconds[name] += seconds
            self._ended.wait(dice.uniform(*pause))

        self._start(run)

    def _start(self, run: Callable[[Any, random.Random], None]) -> None:
        connection = self._server.connect(database=DATABASE)
        dice = random.Random(len(self._threads))  # noqa: S311

        def loop() -> None:
            try:
                with contextlib.closing(connection), connection.cursor() as cursor:
                    while not self._ended.is_set():
                        run(cursor, dice)
            except BaseException as error:
                self._failures.append(error)

        self._threads.append(threading.Thread(target=loop, daemon=True))
