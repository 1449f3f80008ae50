"""Test that the statements in the history of 100 connections match the clients' logs, even on a busy host."""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import duckdb
import pytest

from innoscope.target.digests import digest
from innoscope.target.discover import find_one
from safety.agenting import Running
from safety.sensing import Sensing
from scale import long
from servers import Server
from workloads import Idle

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

CLIENTS, LOAD_S = 100, 50
#: Number of aliases. Each statement uses one at random, so that successive statements of a client usually
#: have different digests.
ALIASES = 50
#: Statement patterns with their weights, which sum to ten.
MIX = (
    (6, "SELECT SLEEP({}) AS c{}"),
    (2, "SELECT BENCHMARK(20000, CRC32('{}')) AS c{}"),
    (2, "UPDATE t1 AS c{1} SET b = b + 1 + SLEEP(0.01 + {0} / 100) WHERE a = 1"),
)
#: Maximum difference in seconds between a snapshot's time and the time at which a stack was copied.
SNAPSHOT_S = 0.1
PAUSE_S, SLEEP_S = (0.3, 1.2), (0.3, 1.0)


@dataclass(frozen=True, slots=True)
class Ran:
    """A statement that a client ran.

    The server may still be executing it after ``ended``, until the next statement begins.
    """

    statement: str
    begun: float
    ended: float
    next_begun: float


def _connected(server: Server, database: str) -> Any:
    return server.connect(database=database)


class Client(threading.Thread):
    """A client that runs statements until it is stopped, and logs them."""

    def __init__(self, server: Server, database: str, number: int, ended: threading.Event) -> None:
        super().__init__(daemon=True)
        self._connection = _connected(server, database)
        self.connection = int(self._connection.thread_id())
        self._dice = random.Random(number)  # noqa: S311
        self._ended = ended
        self._log: list[tuple[str, float, float]] = []

    def run(self) -> None:
        patterns = [pattern for number, pattern in MIX for _ in range(number)]
        with contextlib.closing(self._connection) as connection, connection.cursor() as cursor:
            while not self._ended.wait(self._dice.uniform(*PAUSE_S)):
                pattern = self._dice.choice(patterns)
                statement = pattern.format(
                    f"{self._dice.uniform(*SLEEP_S):.3f}", self._dice.randrange(ALIASES)
                )
                begun = time.time()
                cursor.execute(statement)
                self._log.append((statement, begun, time.time()))

    @property
    def log(self) -> Iterator[Ran]:
        """Yield the statements in order."""
        following = [*(begun for _, begun, _ in self._log[1:]), float("inf")]
        for (statement, begun, ended), after in zip(self._log, following, strict=True):
            yield Ran(statement, begun, ended, after)


@long("tests/live/test_statements.py has eight clients")
@pytest.mark.parametrize("name", ["mysql-8.0.31", "mariadb-10.11"])
def test_samples_have_the_statements_of_the_clients(name: str) -> None:
    ended = threading.Event()
    with (
        Server(name) as server,
        Sensing("--no-probes", only=[server]) as sensing,
        Running(server, sensor=sensing.path) as agent,
        Idle(server, 1) as idle,
    ):
        target = find_one(pid=server.pid)
        idle.sql(f"CREATE TABLE {idle.database}.t1 (a INT PRIMARY KEY, b INT) ENGINE=InnoDB")
        idle.sql(f"INSERT INTO {idle.database}.t1 VALUES (1, 0)")
        agent.until(lambda scrape: scrape.value("statements_up") == 1, patience=60)
        clients = [Client(server, idle.database, number, ended) for number in range(CLIENTS)]
        for client in clients:
            client.start()
        listed = _process_lists(idle)
        ended.set()
        for client in clients:
            client.join()
        agent.until_recorded()
        agent.terminate()
        samples, snapshots = _samples(agent.history)

    def id_of(statement: str) -> str:
        found: str = digest(statement.encode(), flavour=target.flavour, version=target.version).id
        return found

    ids = {ran.statement: id_of(ran.statement) for client in clients for ran in client.log}
    logs = {client.connection: [(ids[ran.statement], ran) for ran in client.log] for client in clients}
    right, wrong = _check(samples, logs)
    print(f"\n{name}: {len(ids)} statements, {len(set(ids.values()))} digests, {len(snapshots)} snapshots")
    print(f"samples with a statement: {dict(right)}, wrong: {wrong}")
    print(f"without: {dict(Counter(wait for _, _, one, _, wait in samples if one is None))}")
    _print_process_lists(listed, logs, id_of)
    found, expected = _found(samples, snapshots, logs)
    print(
        f"statements that ran {SNAPSHOT_S} s before and after a snapshot: {expected}, in the history {found}"
    )
    assert not [trust for trust, *_ in wrong if trust == "exact"]
    assert len(wrong) <= 0.01 * sum(right.values())
    assert found >= 0.99 * expected > 300


def _samples(history: Path) -> tuple[list[tuple[Any, ...]], list[float]]:
    """Return the clients' samples (time, connection, digest, trust, wait class) and the snapshots' times."""
    database = duckdb.connect()
    samples = database.execute(
        "SELECT epoch_us(taken_at) / 1e6, connection, digest, statement_trust, wait"
        f" FROM '{history}/*/samples.parquet' WHERE kind = 'connection'"
    ).fetchall()
    times = database.execute(
        f"SELECT epoch_us(taken_at) / 1e6 FROM '{history}/*/snapshots.parquet'"
    ).fetchall()
    return samples, [at for (at,) in times]


def _check(
    samples: list[tuple[Any, ...]], logs: dict[int, list[tuple[str, Ran]]]
) -> tuple[Counter[str], list[tuple[Any, ...]]]:
    """Return the number of correct samples by trust level, and a list of the wrong ones."""
    right: Counter[str] = Counter()
    wrong = []
    for at, connection, one, trust, wait in samples:
        if one is None or connection not in logs:
            continue
        if any(name == one and _covers(ran, at) for name, ran in logs[connection]):
            right[trust] += 1
        else:
            wrong.append((trust, wait, connection, at))
    return right, wrong


def _covers(ran: Ran, at: float) -> bool:
    return ran.begun - SNAPSHOT_S <= at <= max(ran.ended, min(ran.next_begun, at)) + SNAPSHOT_S


def _found(
    samples: list[tuple[Any, ...]], snapshots: list[float], logs: dict[int, list[tuple[str, Ran]]]
) -> tuple[int, int]:
    """Return (found, expected): ``expected`` counts the statements that certainly ran during a snapshot."""
    have = {(at, connection, one) for at, connection, one, *_ in samples}
    expected = [
        (at, connection, name) in have
        for at in snapshots
        for connection, log in logs.items()
        for name, ran in log
        if ran.begun + SNAPSHOT_S <= at <= ran.ended - SNAPSHOT_S
    ]
    return sum(expected), len(expected)


def _process_lists(idle: Idle) -> list[tuple[float, dict[int, str]]]:
    """Read the process list once per second while the clients run."""
    listed = []
    for _ in range(LOAD_S):
        time.sleep(1)
        rows = idle.sql("SHOW FULL PROCESSLIST")
        texts = {row[0]: row[7] for row in rows if row[4] == "Query" and row[3] == idle.database}
        listed.append((time.time(), texts))
    return listed


def _print_process_lists(
    listed: list[tuple[float, dict[int, str]]], logs: dict[int, list[tuple[str, Ran]]], id_of: Any
) -> None:
    """Print how many statements of the process list match the clients' logs, and how many do not."""
    counts: dict[bool, int] = defaultdict(int)
    for at, texts in listed:
        for connection, text in texts.items():
            if connection in logs and text:
                one = id_of(text)
                counts[any(name == one and _covers(ran, at) for name, ran in logs[connection])] += 1
    print(f"process list: {counts[True]} right, {counts[False]} wrong")
