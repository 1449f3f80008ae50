"""Test that the sensor's snapshots name each waiting thread's lock and the connection that blocks it."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from threading import Event, Thread
from typing import TYPE_CHECKING

import pytest

from innoscope.memory.locks.blockers import BLOCKED, ROW
from innoscope.memory.statements.attribution import Attribution
from innoscope.memory.statements.source import open_blockers
from innoscope.sampling.engine import Engine
from innoscope.target.discover import find_one
from live.row_lock_waits import until_waiting
from scale import count, few
from servers import Server
from waiting import until_asleep
from workloads import Idle, MetadataLock, RowLock
from workloads.crowd import Crowd

if TYPE_CHECKING:
    from collections.abc import Iterator

    from innoscope.sampling.model import Snapshot

SERVERS = few(
    ["mysql-5.5.9", "mysql-5.6.24", "mysql-5.7.22", "mysql-8.0.31", "mysql-9.7", "mariadb-11.4.5"],
    "mysql-5.6.24",
    "mysql-8.0.31",
    "mariadb-11.4.5",
    reason="one server per way in which blockers are stored",
)
WAITERS = 20
#: Number of clients that lock one row, one after another.
CLIENTS = 6
#: Minimum number of comparisons.
ENOUGH = count(quick=40, full=200)
#: Seconds for which a client holds the lock: longer than a snapshot takes, even on a busy host.
HOLD_S = 0.1
SECONDS = 120
FOREVER = 100_000


@pytest.fixture(scope="module", params=SERVERS)
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    with Server(request.param) as server:
        yield server


@pytest.fixture
def snapshots(server: Server) -> Attribution:
    target = find_one(pid=server.pid)
    return Attribution(target, Engine(target), 0, blockers=open_blockers(target))


def _blocked(snapshot: Snapshot) -> Counter[tuple[str, int | None, str | None]]:
    """Return the waiting threads by wait class, blocking connection and lock."""
    waiting = [thread for thread in snapshot.threads if thread.wait in BLOCKED]
    return Counter(
        (thread.wait, thread.blocked.connection, thread.blocked.object)
        if thread.blocked
        else (thread.wait, None, None)
        for thread in waiting
    )


def test_holder_of_a_row_is_named(server: Server, snapshots: Attribution) -> None:
    with RowLock(server, WAITERS) as load:
        [holder] = load.listed("COMMAND = 'Sleep'")
        until_asleep(server.pid)
        for _ in range(3):
            expected = {(ROW, holder, f"index {load.database}.t1.PRIMARY"): WAITERS}
            assert _blocked(snapshots.take_snapshot()) == expected


def test_holder_of_a_metadata_lock_is_named(server: Server, snapshots: Attribution) -> None:
    with MetadataLock(server, WAITERS) as load:
        [holder] = load.listed("COMMAND = 'Sleep'")
        until_asleep(server.pid)
        found: Counter[tuple[str, int | None, str | None]] = Counter()
        for _ in range(12):
            found += _blocked(snapshots.take_snapshot())
    # The ALTER's thread wakes up once per second. Its stack is then not exact, and the thread has no blocker.
    named = found["metadata_lock", holder, f"table {load.database}.t1"]
    assert {one[1] for one in found} <= {holder, None}
    assert named >= 0.95 * found.total(), found


def test_chain_of_waiting_transactions_is_followed_link_by_link(
    server: Server, snapshots: Attribution
) -> None:
    """Make connection B, which holds row 2, wait for A, which holds row 1, and all others wait for B."""
    with Idle(server, 1) as idle:
        idle.sql(f"CREATE TABLE {idle.database}.t1 (a INT PRIMARY KEY, b INT) ENGINE=InnoDB")
        idle.sql(f"INSERT INTO {idle.database}.t1 VALUES (1, 0), (2, 0)")
        setup = f"SET SESSION innodb_lock_wait_timeout = {FOREVER}"
        begin = (setup, "BEGIN")
        with (
            Crowd(server, 1, idle.database, (*begin, "UPDATE t1 SET b = 1 WHERE a = 1")) as first,
            Crowd(server, 1, idle.database, (*begin, "UPDATE t1 SET b = 1 WHERE a = 2")) as second,
            Crowd(server, 3, idle.database, (setup,)) as others,
        ):
            second.send("UPDATE t1 SET b = 2 WHERE a = 1")
            others.send("UPDATE t1 SET b = 3 WHERE a = 2")
            until_waiting(idle, 4)
            until_asleep(server.pid)
            links = {
                thread.query.connection_id: thread.blocked.connection if thread.blocked else None
                for thread in snapshots.take_snapshot().threads
                if thread.query is not None and thread.wait == ROW
            }
    assert links == {second.ids[0]: first.ids[0]} | dict.fromkeys(others.ids, second.ids[0])


class _Passing:
    """Clients that lock one row, one after another. ``holder`` is the one that certainly holds the lock."""

    def __init__(self, server: Server, database: str) -> None:
        self.holder: tuple[int, int] | None = None
        self._server, self._database = server, database
        self._stop = Event()

    def _run(self) -> None:
        with contextlib.closing(self._server.connect(database=self._database)) as connection:
            identity, turn = int(connection.thread_id()), 0  # type: ignore[no-untyped-call]
            while not self._stop.is_set():
                connection.query("BEGIN")
                connection.query("UPDATE t1 SET b = b + 1 WHERE a = 1")
                self.holder = (identity, turn := turn + 1)
                self._stop.wait(HOLD_S)
                self.holder = None
                connection.query("COMMIT")

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        threads = [Thread(target=self._run) for _ in range(CLIENTS)]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self._stop.set()
            for thread in threads:
                thread.join()


def test_no_wrong_blocker_is_named_while_a_row_lock_passes_from_client_to_client(
    server: Server, snapshots: Attribution
) -> None:
    """Compare only if the same client held the lock before and after the snapshot.

    A waiter may be blocked by an earlier waiter, so the test follows each chain to its end.
    """
    compared = named = unknown = 0
    with Idle(server, 1) as idle:
        idle.sql(f"CREATE TABLE {idle.database}.t1 (a INT PRIMARY KEY, b INT) ENGINE=InnoDB")
        idle.sql(f"INSERT INTO {idle.database}.t1 VALUES (1, 0)")
        passing = _Passing(server, idle.database)
        with passing.running():
            deadline = time.monotonic() + SECONDS
            while compared < ENOUGH:
                assert time.monotonic() < deadline, compared
                before = passing.holder
                snapshot = snapshots.take_snapshot()
                if before is None or before != passing.holder:
                    continue
                roots = _roots(snapshot)
                compared += bool(roots)
                named += sum(root is not None for root in roots)
                unknown += sum(root is None for root in roots)
                assert {root for root in roots if root is not None} <= {before[0]}, (roots, before)
    print(f"{server.name}: {named} waiters with the right blocker, {unknown} without one, none wrong")
    assert named > unknown


def _roots(snapshot: Snapshot) -> list[int | None]:
    """Return the connection at the end of each row lock waiter's chain; None if unknown."""
    waiting = {
        thread.query.connection_id: thread.blocked.connection if thread.blocked else None
        for thread in snapshot.threads
        if thread.query is not None and thread.wait == ROW
    }
    roots = []
    for start in waiting:
        root: int | None = start
        for _ in waiting:
            root = waiting.get(root, root) if root is not None else None
        roots.append(root)
    return roots
