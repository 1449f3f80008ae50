"""Test that metadata lock holders are read from the memory of stripped servers, even if SQL is refused."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pymysql
import pytest

from innoscope.memory.locks import layout, metadata, sessions
from innoscope.memory.locks.layout import ProcessMemory
from innoscope.target.discover import find_one
from live.blocker_scenes import SCENES, WAITERS
from safety.command import innoscope
from scale import count, few
from servers import Server
from waiting import until, until_asleep
from workloads import Idle
from workloads.crowd import Crowd

if TYPE_CHECKING:
    from collections.abc import Iterator

    from innoscope.memory.locks.futexes import Wait
    from innoscope.memory.locks.sessions import ServerSession

NAMES = few(
    ["mysql-5.7.22", "mysql-8.0.31", "mysql-9.7"], "mysql-5.7.22", "mysql-8.0.31", reason="as on 8.0.31"
)
TOO_MANY_CONNECTIONS, FOUND = 1040, 18
#: Number of times that each scene is repeated.
REPEATS = count(quick=3, full=20)
#: Number of clients that take a lock one after another.
CLIENTS = 6
#: Minimum number of comparisons while the lock passes from client to client.
ENOUGH = count(quick=50, full=200)
#: Seconds for which a client holds the lock: longer than a read takes, even on a busy host.
HOLD_S = 0.05
SECONDS = 120


class Reader:
    """A reader of connections and metadata locks that works in the same way as ``diagnose``."""

    def __init__(self, server: Server) -> None:
        self._pid = server.pid
        self._memory = ProcessMemory(server.pid)
        self._layout = layout.learn(find_one(pid=server.pid))
        assert not {"sessions", "metadata"} & self._layout.why.keys(), self._layout.why

    def sessions(self) -> list[ServerSession]:
        assert self._layout.sessions is not None
        threads = {int(task.name) for task in Path(f"/proc/{self._pid}/task").iterdir()}
        return sessions.read(self._memory, self._layout.sessions, threads)

    def waits(self) -> list[Wait]:
        return metadata.waits(self._memory, self._layout, self.sessions())

    def holders(self) -> list[set[int]]:
        """Return the connections that hold the lock, for each waiting connection."""
        found = self.sessions()
        connections = {session.thread: session.connection for session in found}
        waits = metadata.waits(self._memory, self._layout, found)
        return [{connections[owner] for owner in wait.owners} for wait in waits]


@pytest.fixture(scope="module", params=NAMES)
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    with Server(request.param) as server:
        yield server


def test_layouts_of_other_versions_are_refused(server: Server) -> None:
    target = find_one(pid=server.pid)
    others = {(5, 7, 22), (8, 0, 31), (9, 7, 4)} - {target.version}
    assert len(others) == 2
    for version in others:
        assert layout.learn(replace(target, version=version)).sessions is None


@contextlib.contextmanager
def _table_written(server: Server) -> Iterator[int]:
    """Let readers wait for LOCK TABLES … WRITE while a client has a compatible lock (HANDLER … OPEN)."""
    with Idle(server, 1) as idle:
        idle.sql(f"CREATE TABLE {idle.database}.t1 (a INT PRIMARY KEY) ENGINE=InnoDB")
        with (
            Crowd(server, 1, idle.database, ("HANDLER t1 OPEN",)),
            Crowd(server, 1, idle.database, ("LOCK TABLES t1 WRITE",)) as holder,
            Crowd(server, WAITERS, idle.database) as waiters,
        ):
            waiters.send("SELECT * FROM t1")
            until(lambda: len(idle.listed("STATE = 'Waiting for table metadata lock'")) == WAITERS)
            yield holder.ids[0]


HOLDS = {
    "ALTER TABLE behind a transaction": SCENES["table"].hold,
    "LOCK TABLES": _table_written,
    "FLUSH TABLES WITH READ LOCK": SCENES["global"].hold,
}


@contextlib.contextmanager
def _no_connection_left(server: Server) -> Iterator[None]:
    """Use up all connections, including the one reserved for SUPER.

    The control connection stays open, because closing it would free a slot.
    """
    with contextlib.ExitStack() as stack:
        control = stack.enter_context(contextlib.closing(server.connect()))
        control.query("SET GLOBAL max_connections = 30")
        stack.callback(lambda: control.query("SET GLOBAL max_connections = 2500"))
        with pytest.raises(pymysql.err.OperationalError) as refused:
            _connect_forever(server, stack)
        assert refused.value.args[0] == TOO_MANY_CONNECTIONS
        yield


def _connect_forever(server: Server, stack: contextlib.ExitStack) -> None:
    while True:
        stack.enter_context(contextlib.closing(server.connect()))


@pytest.mark.parametrize("kind", HOLDS)
def test_diagnose_names_the_holder_while_the_server_refuses_sql(server: Server, kind: str) -> None:
    with HOLDS[kind](server) as holder, _no_connection_left(server):
        done = innoscope("diagnose", "--pid", server.pid, "--seconds", 2, "--json")
    assert done.returncode == FOUND, done.stderr
    report = json.loads(done.stdout)
    [finding] = [one for one in report["findings"] if one["name"] == "metadata_lock"]
    blockers = finding["blockers"]
    assert [one["connection"] for one in blockers] == [holder], blockers
    assert blockers[0]["waiting"] >= WAITERS


@pytest.mark.parametrize("kind", HOLDS)
def test_only_the_holder_is_named_in_each_repeat(server: Server, kind: str) -> None:
    for _ in range(REPEATS):
        with HOLDS[kind](server) as holder:
            until_asleep(server.pid)
            found = Reader(server).holders()
            assert len(found) >= WAITERS
            assert all(one == {holder} for one in found), (found, holder)


def test_nobody_is_named_if_nobody_waits(server: Server) -> None:
    """Hold metadata locks in transactions while other connections run statements and connect."""
    with Idle(server, 1) as idle:
        idle.sql(f"CREATE TABLE {idle.database}.t1 (a INT PRIMARY KEY) ENGINE=InnoDB")
        with Crowd(server, 20, idle.database, ("BEGIN", "SELECT * FROM t1")):
            reader = Reader(server)
            for _ in range(REPEATS):
                idle.sql(f"INSERT IGNORE INTO {idle.database}.t1 VALUES (CONNECTION_ID())")
                server.sql("SELECT 1")
                assert reader.waits() == []


def test_all_of_many_connections_are_read(server: Server) -> None:
    """Open more connections than fit into MySQL's preallocated arrays (THD_array, mysqld_thd_manager.h)."""
    with Idle(server, 700) as idle:
        connected = set(idle.connection_ids())
        assert len(connected) >= 700
        assert connected <= {session.connection for session in Reader(server).sessions()}


class _Passing:
    """Clients that lock one table, one after another. ``holder`` is the one that certainly holds the lock."""

    def __init__(self, server: Server, database: str) -> None:
        self.holder: tuple[int, int] | None = None
        self._server, self._database = server, database
        self._stop = threading.Event()

    def run(self) -> None:
        with contextlib.closing(self._server.connect(database=self._database)) as connection:
            identity, turn = int(connection.thread_id()), 0  # type: ignore[no-untyped-call]
            while not self._stop.is_set():
                connection.query("LOCK TABLES t1 WRITE")
                self.holder = (identity, turn := turn + 1)
                self._stop.wait(HOLD_S)
                self.holder = None
                connection.query("UNLOCK TABLES")

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        threads = [threading.Thread(target=self.run) for _ in range(CLIENTS)]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self._stop.set()
            for thread in threads:
                thread.join()


def test_no_wrong_holder_is_named_while_a_lock_passes_from_client_to_client(server: Server) -> None:
    """Compare only if the same client held the lock before and after the lock was read."""
    compared = 0
    with Idle(server, 1) as idle:
        idle.sql(f"CREATE TABLE {idle.database}.t1 (a INT PRIMARY KEY) ENGINE=InnoDB")
        passing, reader = _Passing(server, idle.database), Reader(server)
        with passing.running():
            deadline = time.monotonic() + SECONDS
            while compared < ENOUGH:
                assert time.monotonic() < deadline, compared
                before = passing.holder
                found = reader.holders()
                if before is not None and before == passing.holder and found:
                    assert all(one == {before[0]} for one in found), (found, before)
                    compared += 1
