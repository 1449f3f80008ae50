"""Test that the sensor's snapshots contain the statements of busy threads, without literals."""

from __future__ import annotations

import contextlib
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from innoscope.common.samples import Histogram, by_series
from innoscope.common.supervision import Supervisor
from innoscope.common.workers import Workers
from innoscope.metrics.collectors.waits import WaitsCollector, open_with_statements
from innoscope.target.digests import digest
from innoscope.target.discover import find_one
from live.row_lock_waits import until_waiting
from safety.sensing import Sensing, outcome
from scale import few
from servers import ADDED, NAMES, TRIED, Server
from waiting import until, until_asleep
from workloads import Crowd, Idle

if TYPE_CHECKING:
    from collections.abc import Iterator

    from innoscope.daemon.protocol.messages import ServerReply
    from innoscope.memory.statements.source import StatementSource
    from innoscope.sampling.model import Snapshot
    from innoscope.target.model import Target

SERVERS = few(
    [*NAMES, *ADDED, *TRIED], "mysql-5.6.24", "mysql-8.0.31", "mariadb-10.11", reason="one server per source"
)
SECRET = "Zq31Literal"  # noqa: S105
FOREVER, WAITERS, SNAPSHOTS = 100_000, 20, 5
#: Two statements that wait for a row. Unlike a thread in SLEEP, which wakes up every 5 s, their threads do
#: not run, so their statements are exact in every snapshot.
SELECT = f"SELECT b FROM t1 WHERE a = 1 AND '{SECRET}' <> 'x' FOR UPDATE"
UPDATE = f"UPDATE t1 SET b = b + 1 WHERE a = 1 AND '{SECRET}' <> 'x'"
STATEMENTS = 2 * WAITERS
SETTLED_S = 60


@pytest.fixture(scope="module", params=SERVERS)
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    with Server(request.param) as server:
        yield server


@contextlib.contextmanager
def _busy(server: Server) -> Iterator[dict[int, str]]:
    """Run statements that do not end. Yield them by connection."""
    with Idle(server, 20) as idle, contextlib.ExitStack() as stack:
        idle.sql(f"CREATE TABLE {idle.database}.t1 (a INT PRIMARY KEY, b INT) ENGINE=InnoDB")
        idle.sql(f"INSERT INTO {idle.database}.t1 VALUES (1, 0)")
        stack.enter_context(Crowd(server, 1, idle.database, ("BEGIN", "UPDATE t1 SET b = b + 1")))
        setup = f"SET SESSION innodb_lock_wait_timeout = {FOREVER}"
        expected: dict[int, str] = {}
        for statement in (SELECT, UPDATE):
            crowd = stack.enter_context(Crowd(server, WAITERS, idle.database, (setup,)))
            crowd.send(statement)
            expected |= dict.fromkeys(crowd.ids, statement)
        until(lambda: len(_running(server)) == len(expected), lambda: _running(server))
        until_waiting(idle, STATEMENTS)
        until_asleep(server.pid)
        yield expected


def _running(server: Server) -> list[int]:
    rows = server.sql("SHOW FULL PROCESSLIST")
    return [row[0] for row in rows if SECRET in str(row[7])]


class Recording:
    """A wrapper around the sensor's statement source that stores its snapshots."""

    def __init__(self, source: StatementSource) -> None:
        self.source = source
        self.snapshots: list[Snapshot] = []

    @property
    def available(self) -> bool:
        return self.source.available

    def take_snapshot(self) -> Snapshot:
        snapshot = self.source.take_snapshot()
        self.snapshots.append(snapshot)
        return snapshot


def test_snapshots_of_the_collector_contain_the_statements(server: Server) -> None:
    workers = Workers()
    recordings: list[Recording] = []

    def open_source(target: Target) -> Recording:
        recordings.append(Recording(open_with_statements(target, workers)))
        return recordings[-1]

    Supervisor().start("workers", workers.run, SETTLED_S)
    target = find_one(server.pid)
    with _busy(server) as expected, contextlib.closing(workers):
        waits = WaitsCollector(target, workers=workers, interval_s=0.2, open_source=open_source)
        with contextlib.closing(waits):
            until(lambda: recordings and recordings[0].available, within_s=SETTLED_S)
            before = len(recordings[0].snapshots)
            until(lambda: len(recordings[0].snapshots) > before + SNAPSHOTS, within_s=SETTLED_S)
            [up] = [one.value for one in waits.collect() if one.metric == "statements_up"]
    first, *others = recordings[0].snapshots
    assert all(thread.query is None for thread in first.threads), "the first one does not wait for the layout"
    assert up == 1
    digests = {
        statement: digest(statement.encode(), flavour=target.flavour, version=target.version)
        for statement in (SELECT, UPDATE)
    }
    seen: Counter[str] = Counter()
    for snapshot in others[before + 1 :]:
        for thread in snapshot.threads:
            if thread.query is None or thread.query.connection_id not in expected:
                continue
            query, right = thread.query, digests[expected[thread.query.connection_id]]
            assert (query.digest_id, query.digest_text) == (right.id, right.text)
            assert (query.text, query.trust, query.command, query.user) == (None, "exact", "Query", "root")
            seen[right.text] += 1
    taken = len(others[before + 1 :])
    assert seen == {digests[statement].text: taken * WAITERS for statement in (SELECT, UPDATE)}


def test_sensor_reads_statements_and_keeps_no_literals(server: Server) -> None:
    with Sensing(only=[server]) as sensing:
        with _busy(server):
            sensing.until(server, lambda reply: _value(reply, "statement_threads", "exact") == STATEMENTS)
            assert SECRET not in sensing.log
        assert "statements are read from memory" in sensing.log
        reply = sensing.until(server, lambda reply: _value(reply, "statement_threads", "exact") == 0)
        # Later snapshots overwrite the copies of the stacks, which may contain literals. Each snapshot copies
        # more than 15 of the server's own threads.
        copied = _value(reply, "thread_samples", "exact")
        sensing.until(server, lambda later: _value(later, "thread_samples", "exact") > copied + 100)
        found = _occurrences(sensing.pid, SECRET.encode())
    print(server.name, found)
    assert not found


def _value(reply: ServerReply, metric: str, label: str) -> float:
    """Return a value from the waits collector; -1 while the first snapshot is being taken."""
    value = by_series(outcome(reply, "waits").samples).get((metric, (label,)), -1)
    assert not isinstance(value, Histogram)
    return value


def _occurrences(pid: int, text: bytes) -> list[str]:
    """Return the mappings of a process's private memory that contain a text."""
    found = []
    with Path(f"/proc/{pid}/mem").open("rb", buffering=0) as memory:
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
            span, mode, *_ = line.split()
            if not mode.startswith("rw"):
                continue
            start, end = (int(one, 16) for one in span.split("-"))
            memory.seek(start)
            with contextlib.suppress(OSError):
                count = memory.read(end - start).count(text)
                found += [f"{count}× {line}"] if count else []
    return found
