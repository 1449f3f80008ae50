"""Test that blockers are reported with their lock, connection, thread and statement."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING

import pymysql
import pytest
from pymysql.constants.CR import CR_SERVER_LOST

from innoscope.common.errors import SqlFailed
from innoscope.diagnose import collect
from innoscope.diagnose.blocking_chains import Blocker, blockers
from innoscope.diagnose.collect import EvidenceCollector, Sources
from innoscope.diagnose.sql_queries import SqlAnswers, query_all
from innoscope.target.discover import find_one
from servers import Server
from waiting import until, until_asleep
from workloads.crowd import Crowd

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from innoscope.diagnose.evidence import Evidence
    from innoscope.target.login import Connection
    from innoscope.target.model import Target

SECONDS = 1.5
WAITERS = 8
_OPENAT, _FUTEX = "257", "202"  # asm/unistd_64.h
_PROCESSES = "FROM information_schema.PROCESSLIST WHERE DB = 'blocking'"
#: Servers whose metadata locks can be read: from memory with debug information or, on 9.7, over SQL, because
#: its performance schema lists metadata locks by default.
READABLE = ("mysql-5.5.9", "mysql-9.7", "mariadb-11.4.5")


def collected(server: Server, *, sql: bool = True) -> Evidence:
    sources = Sources(sql=sql, probes=False, user="root")
    with contextlib.closing(EvidenceCollector(find_one(server.pid), sources)) as collector:
        return collector.run(SECONDS)


@pytest.fixture
def tables(server: Callable[[str], Server], request: pytest.FixtureRequest) -> Iterator[Server]:
    """Yield a server with two tables in the database ``blocking``."""
    one = server(request.param)
    one.sql(
        "CREATE DATABASE blocking", "CREATE TABLE blocking.t (a INT PRIMARY KEY, b INT) ENGINE=InnoDB",
        "CREATE TABLE blocking.u (a INT PRIMARY KEY, b INT) ENGINE=InnoDB",
        "INSERT INTO blocking.t VALUES (1, 0)", "INSERT INTO blocking.u VALUES (1, 0)",
    )  # fmt: skip
    yield one
    until(lambda: not _connections(one))
    one.sql("DROP DATABASE blocking")


def _connections(server: Server) -> list[int]:
    """Kill the remaining connections and return their ids.

    A server may take a while to notice that a client has disconnected.
    """
    remaining = [row[0] for row in server.sql(f"SELECT ID {_PROCESSES}")]
    for connection in remaining:
        with contextlib.suppress(pymysql.MySQLError):  # the connection has ended in the meantime
            server.sql(f"KILL {connection}")
    return remaining


def _wait_for_waiters(server: Server, state: str, count: int) -> None:
    """Wait until so many threads wait in this state, and all threads of the server sleep."""
    statement = f"SELECT COUNT(*) {_PROCESSES} AND STATE LIKE '{state}'"
    until(lambda: server.sql(statement) == [(count,)])
    until_asleep(server.pid)


@contextlib.contextmanager
def _crowd(server: Server, statement: str, count: int = WAITERS, *setup: str) -> Iterator[Crowd]:
    with Crowd(server, count, "blocking", setup) as crowd:
        if statement:
            crowd.send(statement)
        yield crowd


def _only(found: list[Blocker]) -> Blocker:
    assert len(found) == 1, found
    return found[0]


def _check_thread(server: Server, evidence: Evidence, blocker: Blocker) -> None:
    """Check the blocker's thread against the server's own data, if the server reports thread ids."""
    assert blocker.thread is not None
    assert Path(f"/proc/{server.pid}/task/{blocker.thread}").exists()
    if server.spec.os_thread_sql:
        assert dict(server.sql(server.spec.os_thread_sql))[blocker.connection] == blocker.thread
    assert any(one.tid == blocker.thread for one in evidence.statements)


@pytest.mark.parametrize("tables", ["mysql-5.6.24"], indirect=True)
def test_queries_that_time_out_are_repeated(tables: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    results: list[SqlAnswers] = []

    def unanswered() -> Connection:
        raise SqlFailed("no SQL: no reply") from pymysql.OperationalError(CR_SERVER_LOST, "timed out")

    def stalled_at_first(target: Target, connect: Callable[[], Connection], waiting: float) -> SqlAnswers:
        results.append(query_all(target, connect if results else unanswered, waiting))
        return results[-1]

    monkeypatch.setattr(collect, "query_all", stalled_at_first)
    evidence = collected(tables)
    assert [bool(result.answers) for result in results] == [False, True]
    assert evidence.answers == results[1].answers
    assert evidence.missing.keys() >= results[1].missing.keys()
    assert not [one for one in evidence.missing.values() if one.reason == "timeout"]


@pytest.mark.parametrize("tables", READABLE, indirect=True)
def test_holder_of_lock_tables_is_named(tables: Server) -> None:
    with _crowd(tables, "", 1, "LOCK TABLES t WRITE") as holder, _crowd(tables, "SELECT * FROM t"):
        _wait_for_waiters(tables, "Waiting for table%", WAITERS)
        evidence = collected(tables)
        found = _only(blockers(evidence, "metadata_lock"))
        assert (found.connection, found.waiting) == (holder.ids[0], WAITERS)
        assert "blocking.t" in str(found.lock)
        _check_thread(tables, evidence, found)


@pytest.mark.parametrize("tables", ["mysql-5.6.24"], indirect=True)
def test_holder_of_the_global_read_lock_is_named_without_sql(tables: Server) -> None:
    with (
        _crowd(tables, "", 1, "FLUSH TABLES WITH READ LOCK") as holder,
        _crowd(tables, "UPDATE t SET b = b + 42"),
    ):
        _wait_for_waiters(tables, "Waiting for%", WAITERS)
        evidence = collected(tables, sql=False)
        found = _only(blockers(evidence, "metadata_lock"))
        assert (found.connection, found.waiting) == (holder.ids[0], WAITERS)
        texts = {one.text for one in evidence.statements}
        assert "UPDATE `t` SET `b` = `b` + ?" in texts, "statements are read from memory, without literals"


@pytest.mark.parametrize("tables", ["mariadb-11.4.5"], indirect=True)
def test_holder_of_a_user_lock_is_named(tables: Server) -> None:
    with (
        _crowd(tables, "", 1, "SELECT GET_LOCK('secret', 9)") as holder,
        _crowd(tables, "SELECT GET_LOCK('secret', 99)"),
    ):
        _wait_for_waiters(tables, "User lock", WAITERS)
        evidence = collected(tables)
        found = _only(blockers(evidence, "user_lock", "metadata_lock"))
        assert (found.connection, found.waiting, found.lock) == (holder.ids[0], WAITERS, "a user lock")
        assert "secret" not in repr(evidence)


@pytest.mark.parametrize("tables", ["mysql-9.7", "mariadb-11.4.5"], indirect=True)
def test_chain_over_three_kinds_of_lock_leads_to_the_idle_transaction(tables: Server) -> None:
    """Make readers wait for an ALTER of u, the ALTER for a transaction, and the transaction for a row."""
    with (
        _crowd(tables, "", 1, "BEGIN", "UPDATE t SET b = 1") as root,
        _crowd(
            tables, "UPDATE t SET b = 2", 1, "SET innodb_lock_wait_timeout = 1000", "BEGIN", "SELECT * FROM u"
        ) as middle,
        _crowd(tables, "ALTER TABLE u ADD c INT", 1),
    ):
        _wait_for_waiters(tables, "Waiting for table%", 1)
        with _crowd(tables, "SELECT * FROM u"):
            _wait_for_waiters(tables, "Waiting for table%", WAITERS + 1)
            evidence = collected(tables)
            found = _only(blockers(evidence, "metadata_lock"))
            assert found.connection == root.ids[0], found
            assert f"connection {middle.ids[0]} (" in found.words, found
            assert found.waiting == WAITERS + 1


def test_owner_of_a_mutex_of_the_c_library_is_named() -> None:
    """Open a table whose file is a named pipe, so that the connection blocks while it holds LOCK_open."""
    with Server("mysql-5.5.9") as server:
        tables = (f"CREATE TABLE blocking.{one} (a INT)" for one in ("slow", "t"))
        server.sql("CREATE DATABASE blocking", *tables, "FLUSH TABLES")
        with _pipe_for(server, "slow.frm"), _crowd(server, "SELECT 17 FROM slow", 1) as holder:
            _wait_for_waiters(server, "Opening tables", 1)
            with _crowd(server, "SELECT * FROM t"):
                _wait_for_waiters(server, "Opening tables", WAITERS + 1)
                evidence = collected(server)
                found = _only(blockers(evidence, "opening_tables", "mutex_wait"))
                assert (found.connection, found.waiting) == (holder.ids[0], WAITERS)
                assert found.lock == "LOCK_open"
                assert "SELECT ? FROM SLOW" in found.words  # SLOW is a keyword
                assert "open_table_def" in found.stack
                _check_thread(server, evidence, found)


def test_owner_of_a_mutex_is_named_on_a_stripped_server(folder: Path) -> None:
    """Load a plugin from a named pipe without a writer, so that opening the file blocks.

    While the connection loads the plugin, it holds the mutex that SHOW PLUGINS needs.
    """
    with Server("mariadb-10.11", options={"plugin_dir": str(folder)}) as server:
        server.sql("CREATE DATABASE blocking")
        with (
            _crowd(server, "", 1) as holder,
            _crowd(server, "") as waiters,
            contextlib.closing(server.connect()) as connection,  # closing it would also wait for the mutex
        ):
            with connection.cursor() as cursor:
                cursor.execute(server.spec.os_thread_sql)
                threads = dict(cursor.fetchall())
            thread = threads[holder.ids[0]]
            os.mkfifo(folder / "pipe.so")
            holder.send("INSTALL SONAME 'pipe'")
            until(lambda: _syscall(server, thread) == _OPENAT)
            waiters.send("SHOW PLUGINS")
            until(lambda: all(_syscall(server, threads[one]) == _FUTEX for one in waiters.ids))
            found = [held for held in collected(server, sql=False).owners if held.owner == thread]
            os.close(os.open(folder / "pipe.so", os.O_WRONLY | os.O_NONBLOCK))
    assert [(held.kind, held.waiting) for held in found] == [("mutex", WAITERS)]


def _syscall(server: Server, thread: int) -> str:
    return Path(f"/proc/{server.pid}/task/{thread}/syscall").read_text().split()[0]


@contextlib.contextmanager
def _pipe_for(server: Server, name: str) -> Iterator[None]:
    """Replace a file with a named pipe, which blocks its reader. On exit, the reader gets EOF."""
    [file] = server.error_log.parent.rglob(name)
    owner = file.stat()
    file.unlink()
    os.mkfifo(file)
    os.chown(file, owner.st_uid, owner.st_gid)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):  # ENXIO: no process has the pipe open for reading
            os.close(os.open(file, os.O_WRONLY | os.O_NONBLOCK))
        file.unlink()
