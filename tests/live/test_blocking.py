"""Who holds up the others is named: the lock, connection, thread, statement. The truth is what we did."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from innoscope.diagnose.blocking_chains import Blocker, blockers
from innoscope.diagnose.collect import EvidenceCollector, Sources
from innoscope.target.discover import find_one
from servers import Server
from workloads.crowd import Crowd

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from innoscope.diagnose.evidence import Evidence

SECONDS = 1.5
WAITERS = 8
_OPENAT, _FUTEX = "257", "202"  # asm/unistd_64.h
#: Servers that describe themselves: debug information, and for 9.7 the performance schema.
TELLING = ("mysql-5.5.9", "mysql-9.7", "mariadb-11.4.5")


def seen(server: Server, *, sql: bool = True) -> Evidence:
    sources = Sources(sql=sql, probes=False, user="root")
    with contextlib.closing(EvidenceCollector(find_one(server.pid), sources)) as collector:
        return collector.run(SECONDS)


@pytest.fixture
def tables(server: Callable[[str], Server], request: pytest.FixtureRequest) -> Iterator[Server]:
    """A server with two tables in database ``blocking``."""
    one = server(request.param)
    statements = (
        "CREATE DATABASE blocking", "CREATE TABLE blocking.t (a INT PRIMARY KEY, b INT) ENGINE=InnoDB",
        "CREATE TABLE blocking.u (a INT PRIMARY KEY, b INT) ENGINE=InnoDB",
        "INSERT INTO blocking.t VALUES (1, 0)", "INSERT INTO blocking.u VALUES (1, 0)",
    )  # fmt: skip
    _run(one, *statements)
    yield one
    _until(lambda: not _connections(one))
    _run(one, "DROP DATABASE blocking")


def _run(server: Server, *statements: str) -> None:
    with contextlib.closing(server.connect()) as connection, connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)


def _connections(server: Server) -> list[int]:
    """Those that are left are ended: a server does not notice at once that a waiting client has gone."""
    with contextlib.closing(server.connect()) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT ID FROM information_schema.PROCESSLIST WHERE DB = 'blocking'")
        left = [row[0] for row in cursor.fetchall()]
        for one in left:
            with contextlib.suppress(Exception):  # it ended meanwhile
                cursor.execute(f"KILL {one}")
        return left


def _until(reached: Callable[[], bool], patience: float = 60) -> None:
    deadline = time.monotonic() + patience
    while not reached():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def _waiting(server: Server, state: str, count: int) -> Callable[[], bool]:
    def reached() -> bool:
        with contextlib.closing(server.connect()) as connection, connection.cursor() as cursor:
            cursor.execute(
                "SELECT COUNT(*) FROM information_schema.PROCESSLIST"
                f" WHERE DB = 'blocking' AND STATE LIKE '{state}'"
            )
            return bool(cursor.fetchone()[0] == count)

    return reached


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
    """The thread is the one that the server names, where it names one."""
    assert blocker.thread is not None
    assert Path(f"/proc/{server.pid}/task/{blocker.thread}").exists()
    if server.spec.os_thread_sql:
        with contextlib.closing(server.connect()) as connection, connection.cursor() as cursor:
            cursor.execute(server.spec.os_thread_sql)
            assert dict(cursor.fetchall())[blocker.connection] == blocker.thread
    assert any(one.tid == blocker.thread for one in evidence.statements)


@pytest.mark.parametrize("tables", TELLING, indirect=True)
def test_lock_tables(tables: Server) -> None:
    with _crowd(tables, "", 1, "LOCK TABLES t WRITE") as holder, _crowd(tables, "SELECT * FROM t"):
        _until(_waiting(tables, "Waiting for table%", WAITERS))
        evidence = seen(tables)
        found = _only(blockers(evidence, "metadata_lock"))
        assert (found.connection, found.waiting) == (holder.ids[0], WAITERS)
        assert "blocking.t" in str(found.lock)
        _check_thread(tables, evidence, found)


@pytest.mark.parametrize("tables", ["mysql-5.6.24"], indirect=True)
def test_the_global_read_lock_without_sql(tables: Server) -> None:
    """FLUSH TABLES WITH READ LOCK, and nobody is asked anything."""
    with (
        _crowd(tables, "", 1, "FLUSH TABLES WITH READ LOCK") as holder,
        _crowd(tables, "UPDATE t SET b = b + 42"),
    ):
        _until(_waiting(tables, "Waiting for%", WAITERS))
        evidence = seen(tables, sql=False)
        found = _only(blockers(evidence, "metadata_lock"))
        assert (found.connection, found.waiting) == (holder.ids[0], WAITERS)
        texts = {one.text for one in evidence.statements}
        assert "UPDATE t SET b = b + ?" in texts, "statements come out of memory, without their literals"


@pytest.mark.parametrize("tables", ["mariadb-11.4.5"], indirect=True)
def test_a_user_lock(tables: Server) -> None:
    with (
        _crowd(tables, "", 1, "SELECT GET_LOCK('secret', 9)") as holder,
        _crowd(tables, "SELECT GET_LOCK('secret', 99)"),
    ):
        _until(_waiting(tables, "User lock", WAITERS))
        evidence = seen(tables)
        found = _only(blockers(evidence, "user_lock", "metadata_lock"))
        assert (found.connection, found.waiting, found.lock) == (holder.ids[0], WAITERS, "a user lock")
        assert "secret" not in repr(evidence)


@pytest.mark.parametrize("tables", ["mysql-9.7", "mariadb-11.4.5"], indirect=True)
def test_a_chain_over_three_kinds_of_lock_leads_to_the_idle_transaction(tables: Server) -> None:
    """Readers → an ALTER of u → a transaction that has read u and wants a row → who has changed that row."""
    with (
        _crowd(tables, "", 1, "BEGIN", "UPDATE t SET b = 1") as root,
        _crowd(
            tables, "UPDATE t SET b = 2", 1, "SET innodb_lock_wait_timeout = 1000", "BEGIN", "SELECT * FROM u"
        ) as middle,
        _crowd(tables, "ALTER TABLE u ADD c INT", 1),
    ):
        _until(_waiting(tables, "Waiting for table%", 1))
        with _crowd(tables, "SELECT * FROM u"):
            _until(_waiting(tables, "Waiting for table%", WAITERS + 1))
            evidence = seen(tables)
            found = _only(blockers(evidence, "metadata_lock"))
            assert found.connection == root.ids[0], found
            assert f"connection {middle.ids[0]} (" in found.words, found
            assert found.waiting == WAITERS + 1


def test_a_mutex_of_the_c_library_names_its_owner() -> None:
    """A table whose file is a pipe is opened for ever, under LOCK_open."""
    with Server("mysql-5.5.9") as server:
        _run(
            server,
            "CREATE DATABASE blocking",
            *(f"CREATE TABLE blocking.{one} (a INT)" for one in ("slow", "t")),
        )
        _run(server, "FLUSH TABLES")
        with _pipe_for(server, "slow.frm"), _crowd(server, "SELECT 17 FROM slow", 1) as holder:
            _until(_waiting(server, "Opening tables", 1))
            with _crowd(server, "SELECT * FROM t"):
                _until(_waiting(server, "Opening tables", WAITERS + 1))
                evidence = seen(server)
                found = _only(blockers(evidence, "opening_tables", "mutex_wait"))
                assert (found.connection, found.waiting) == (holder.ids[0], WAITERS)
                assert found.lock == "LOCK_open"
                assert "SELECT ? FROM slow" in found.words
                assert "open_table_def" in found.stack
                _check_thread(server, evidence, found)


def test_a_mutex_names_its_owner_on_a_stripped_server(folder: Path) -> None:
    """A plugin that is a pipe is loaded for ever, under the mutex that all want who ask for plugins."""
    with Server("mariadb-10.11", options={"plugin_dir": str(folder)}) as server:
        _run(server, "CREATE DATABASE blocking")
        with (
            _crowd(server, "", 1) as holder,
            _crowd(server, "") as waiters,
            contextlib.closing(server.connect()) as connection,  # one that ends would wait for the mutex too
        ):
            with connection.cursor() as cursor:
                cursor.execute(server.spec.os_thread_sql)
                threads = dict(cursor.fetchall())
            thread = threads[holder.ids[0]]
            os.mkfifo(folder / "pipe.so")
            holder.send("INSTALL SONAME 'pipe'")
            _until(lambda: _syscall(server, thread) == _OPENAT)
            waiters.send("SHOW PLUGINS")
            _until(lambda: all(_syscall(server, threads[one]) == _FUTEX for one in waiters.ids))
            found = [held for held in seen(server, sql=False).owners if held.owner == thread]
            os.close(os.open(folder / "pipe.so", os.O_WRONLY | os.O_NONBLOCK))
    assert [(held.kind, held.waiting) for held in found] == [("mutex", WAITERS)]


def _syscall(server: Server, thread: int) -> str:
    return Path(f"/proc/{server.pid}/task/{thread}/syscall").read_text().split()[0]


@contextlib.contextmanager
def _pipe_for(server: Server, name: str) -> Iterator[None]:
    """The file is a named pipe meanwhile; at the end, whoever opens it gets an empty file."""
    [file] = server.error_log.parent.rglob(name)
    owner = file.stat()
    file.unlink()
    os.mkfifo(file)
    os.chown(file, owner.st_uid, owner.st_gid)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):  # ENXIO: nobody waits for it any more
            os.close(os.open(file, os.O_WRONLY | os.O_NONBLOCK))
        file.unlink()
