"""Test that the rw-lock owners read from memory are those that SHOW ENGINE INNODB STATUS names."""

from __future__ import annotations

import contextlib
import re
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pymysql
import pytest

from innoscope.memory.locks import layout, sync_array
from innoscope.memory.locks.layout import ProcessMemory
from innoscope.memory.locks.sessions import threads_of
from innoscope.target.discover import find_one
from scale import few
from servers import Server

if TYPE_CHECKING:
    from collections.abc import Iterator

    from innoscope.memory.locks.futexes import Wait

#: Number of threads that insert into the same indexes.
CLIENTS = 24
#: Minimum number of owners to compare.
ENOUGH = 200
SECONDS = 240
OPTIONS = {"innodb_sync_spin_loops": 0, "innodb_flush_log_at_trx_commit": 0}
#: An rw-lock in the section SEMAPHORES: address, file, writer, its mode and, since 8.0, the only reader.
LOCK = re.compile(
    r"lock(?: \(wait_ex\))? on RW-latch at 0x([0-9a-f]+) created in file (\S+) line \d+\n"
    r"(?:a writer \(thread id (\d+)\) has reserved it in mode +(.*)\n)?"
    r"number of readers \d+(?: \(thread id (\d+)\))?"
)


@contextlib.contextmanager
def _inserts(server: Server) -> Iterator[None]:
    """Insert rows from many connections, so that threads wait for latches of pages and indexes."""
    server.sql(
        "CREATE DATABASE latches",
        "CREATE TABLE latches.t(a INT AUTO_INCREMENT PRIMARY KEY, b CHAR(200), c INT, KEY(b), KEY(c))",
    )
    stop = threading.Event()
    threads = [threading.Thread(target=_insert, args=(server, number, stop)) for number in range(CLIENTS)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def _insert(server: Server, number: int, stop: threading.Event) -> None:
    with contextlib.closing(server.connect()) as connection, connection.cursor() as cursor:
        first = number << 20
        while not stop.is_set():
            rows = ",".join(f"(SHA2({first + row}, 256), {row})" for row in range(50))
            with contextlib.suppress(pymysql.err.OperationalError):  # a deadlock
                cursor.execute(f"INSERT INTO latches.t(b, c) VALUES {rows}")
            first += 50


def _waits(server: Server, locks: layout.LockLayout) -> set[Wait]:
    threads = {int(task.name) for task in Path(f"/proc/{server.pid}/task").iterdir()}
    assert locks.latches is not None
    return set(sync_array.waits(ProcessMemory(server.pid), locks.latches, threads))


def _sleeps(server: Server) -> dict[int, int]:
    """Return each sleeping thread's count of voluntary context switches, which identifies the sleep."""
    found = {}
    for task in Path(f"/proc/{server.pid}/task").iterdir():
        with contextlib.suppress(OSError):  # the thread has exited
            status = (task / "status").read_text()
            if "\nState:\tS" in status:
                found[int(task.name)] = int(status.partition("\nvoluntary_ctxt_switches:")[2].split()[0])
    return found


@pytest.mark.parametrize(
    "name",
    few(["mysql-5.7.22", "mysql-8.0.31", "mysql-9.7"], "mysql-8.0.31", reason="the same code, other offsets"),
)
def test_owners_are_the_threads_that_the_server_names(name: str) -> None:
    """Compare owners while a waiter sleeps.

    If the writer had released the lock, the waiter would have been woken.

    Readers are compared only while the writer waits for them to leave. While a writer holds an SX lock, which
    it may upgrade to an X lock at any time, readers come and go without waking a waiter.
    """
    compared = 0
    with Server(name, options=OPTIONS) as server:
        locks = layout.learn(find_one(pid=server.pid))
        with _inserts(server), contextlib.closing(server.connect()) as connection:
            deadline = time.monotonic() + SECONDS
            while compared < ENOUGH:
                assert time.monotonic() < deadline, compared
                slept, before = _sleeps(server), _waits(server, locks)
                with connection.cursor() as cursor:
                    cursor.execute("SHOW ENGINE INNODB STATUS")
                    shown = LOCK.findall(str((cursor.fetchone() or ("", "", ""))[2]))
                after, asleep = _waits(server, locks), _sleeps(server)
                held = {
                    wait.address: wait
                    for wait in before & after
                    if wait.owners and slept.get(wait.waiter, -1) == asleep.get(wait.waiter)
                }
                for address, file, writer, mode, reader in shown:
                    wait = held.get(int(address, 16))
                    if wait is None or (len(wait.owners) > 1 and mode != "wait exclusive"):
                        continue
                    handles = [int(handle) for handle in (writer, reader) if handle]
                    assert set(wait.owners) <= set(threads_of(ProcessMemory(server.pid), handles))
                    assert wait.name == f"an rw-lock of {file}"
                    compared += 1
