"""The root blocker of synthetic lock waits is found, even if the waits form a chain or a cycle."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from innoscope.diagnose import metadata_locks
from innoscope.diagnose.answers import with_blocked_rows
from innoscope.diagnose.blocking_chains import blockers
from innoscope.diagnose.evidence import ConnectionActivity, Evidence
from innoscope.diagnose.graph import Graph
from innoscope.memory.locks import futexes
from innoscope.memory.locks.blocked_rows import BlockedRow
from innoscope.memory.locks.held import HeldLock
from innoscope.sampling.model import Frame, Thread, Trust
from innoscope.sampling.snapshot_history import CLIENT, ObservedStack

FUTEX, NANOSLEEP = 202, 35
INSIDE = (
    "pread64",
    "my_read",
    "open_table_def",
    "get_table_share",
    "open_table",
    "open_tables",
    "do_command",
)
WAITING = ("__lll_lock_wait", "pthread_mutex_lock", "open_table", "do_command")

DIGEST = "ab" * 16


def held(owner: int | None, *waiters: int, **more: Any) -> HeldLock:
    settings: dict[str, Any] = {
        "kind": "mutex",
        "name": "LOCK_open",
        "wait": "opening_tables",
        "stack": INSIDE,
        "owner_wait": "page_read",
        "owners": 1,
    }
    settings |= {"address": 0x1000, "owner": owner, "waiters": waiters, "waiting": len(waiters)}
    return HeldLock(**(settings | more))


def evidence(*owners: HeldLock, **more: Any) -> Evidence:
    return Evidence({"flavour": "mysql", "version": "5.5.9", "pid": "1"}, 0.0, 1.0, owners=owners, **more)


def test_holder_is_described_in_one_line() -> None:
    statements = (
        ConnectionActivity(42, "app", "web1", "Query", "Opening tables", 9, "SELECT * FROM t", 1234, DIGEST),
    )
    seen = (ObservedStack(CLIENT, "opening_tables", WAITING, 8, (1, 2, 3)),)
    [found] = blockers(evidence(held(1234, 1, 2, 3), statements=statements, seen=seen), "opening_tables")
    assert found.words == (
        "connection 42 (thread 1234, app@web1) holds LOCK_open, inside open_table → get_table_share →"
        " open_table_def → … → pread64 (page read), runs: SELECT * FROM t (digest abababababab);"
        " 3 wait for it"
    )
    assert found.digest == DIGEST
    assert (found.thread, found.connection, found.lock, found.waiting) == (1234, 42, "LOCK_open", 3)
    assert found.stack == INSIDE


def test_chain_leads_to_its_root() -> None:
    """Let threads 1, 2 and 3 wait for thread 4, which is waiting for thread 5."""
    other = held(5, 4, name="the metadata lock of table d.t", wait="metadata_lock", owner_wait="idle")
    [found] = blockers(evidence(held(4, 1, 2, 3), other), "opening_tables")
    assert found.thread == 5
    assert found.words == (
        "thread 5 holds the metadata lock of table d.t;"
        " 3 wait for it, through thread 4, which holds LOCK_open"
    )
    assert found.through == (4,)


def test_row_lock_continues_a_chain() -> None:
    """Let the holder of the metadata lock wait for a row lock, whose idle holder is the root."""
    statements = (
        ConnectionActivity(7, "app", "web1", "Query", "updating", 8, "UPDATE t", 70),
        ConnectionActivity(8, "app", "web2", "Sleep", "", 31, "", 80),
    )
    answers = {"row_lock_waits": ({"waiter": "7", "blocker": "8"},)}
    metadata = held(
        70, 1, 2, name="the metadata lock of table d.t", wait="metadata_lock", owner_wait="row_lock"
    )
    [found] = blockers(evidence(metadata, statements=statements, answers=answers), "metadata_lock")
    assert found.words == (
        "connection 8 (thread 80, app@web2) holds a row lock, idle for 31 s; 2 wait for it, through"
        " connection 7 (thread 70, app@web1), which holds the metadata lock of table d.t"
    )


def test_circular_wait_names_all_its_threads() -> None:
    first, second = held(2, 1, 9), held(1, 2, name="LOCK_log")
    [found] = blockers(evidence(first, second), "opening_tables")[:1]
    assert "in a cycle: thread" in found.words
    assert "thread 1" in found.words
    assert "thread 2" in found.words


def test_metadata_locks_reported_by_the_server_have_a_root() -> None:
    row = {"namespace": "TABLE", "schema": "d", "object": "t", "type": "SHARED_READ"}
    rows = (
        row | {"connection": "1", "status": "GRANTED"},
        row | {"connection": "2", "status": "GRANTED"},
        row | {"connection": "2", "status": "PENDING", "type": "EXCLUSIVE"},
        row | {"connection": "3", "status": "PENDING"},
    )
    [root] = Graph(evidence(answers={"metadata_locks": rows})).roots(["metadata_lock"])
    assert (root.node, root.waiting, root.lock) == (-1, 2, "SHARED_READ on d.t")


def test_readers_of_a_table_that_is_being_altered_do_not_block_its_writers() -> None:
    row = {"namespace": "TABLE", "schema": "d", "object": "t", "type": "SHARED_WRITE"}
    rows = (
        # Held by ALTER TABLE … ALGORITHM=COPY.
        row | {"connection": "1", "status": "GRANTED", "type": "SHARED_NO_WRITE"},
        row | {"connection": "2", "status": "GRANTED", "type": "SHARED_READ"},
        row | {"connection": "3", "status": "PENDING"},
    )
    [held] = metadata_locks.held_locks(rows)
    assert (held.connection, held.waiters, held.words) == (1, (3,), "SHARED_NO_WRITE on d.t")


def test_conflicts_of_metadata_locks_are_symmetric() -> None:
    for granted, conflicting in metadata_locks._CONFLICTS.items():
        for requested in conflicting:
            assert granted in metadata_locks._CONFLICTS[requested]


def test_global_read_lock_blocks_writers_but_writers_do_not_block_each_other() -> None:
    row = {"namespace": "GLOBAL", "schema": "", "object": "", "type": "INTENTION_EXCLUSIVE"}
    rows = (
        row | {"connection": "1", "status": "GRANTED", "type": "SHARED"},
        row | {"connection": "2", "status": "GRANTED"},  # already writes, so the lock does not block it
        row | {"connection": "3", "status": "PENDING"},
        row | {"connection": "4", "status": "PENDING"},
    )
    [root] = Graph(evidence(answers={"metadata_locks": rows})).roots(["metadata_lock"])
    assert (root.node, root.waiting, root.lock) == (-1, 2, "SHARED on the global read lock")


def test_statement_that_writes_blocks_the_global_read_lock() -> None:
    row = {"namespace": "GLOBAL", "schema": "", "object": "", "type": "INTENTION_EXCLUSIVE"}
    rows = (
        row | {"connection": "2", "status": "GRANTED"},
        row | {"connection": "1", "status": "PENDING", "type": "SHARED"},
        row | {"connection": "3", "status": "PENDING"},
    )
    [root] = Graph(evidence(answers={"metadata_locks": rows})).roots(["metadata_lock"])
    assert (root.node, root.waiting) == (-2, 2)


def test_statements_do_not_block_each_other_in_mariadbs_backup_namespace() -> None:
    row = {"namespace": "BACKUP", "schema": "", "object": "", "type": "BACKUP_TRANS_DML"}
    rows = (
        row | {"connection": "1", "status": "GRANTED", "type": "BACKUP_FTWRL1"},
        row | {"connection": "2", "status": "GRANTED"},  # already writes, so the lock does not block it
        row | {"connection": "3", "status": "PENDING", "type": "BACKUP_COMMIT"},
    )
    [root] = Graph(evidence(answers={"metadata_locks": rows})).roots(["metadata_lock"])
    assert (root.node, root.waiting, root.lock) == (-1, 1, "BACKUP_FTWRL1 on the backup lock")


def test_locks_without_an_owner_or_of_another_wait_class_are_not_roots() -> None:
    assert blockers(evidence(held(None, 1, 2)), "opening_tables") == []
    assert blockers(evidence(held(9, 1, wait="mutex_wait")), "opening_tables") == []


def test_changing_owners_and_unlisted_waiters_are_counted() -> None:
    [found] = blockers(evidence(held(9, 1, 2, owners=14, waiting=900)), "opening_tables")
    assert found.waiting == 900
    assert "LOCK_open (one of 14 that held it in turn)" in found.words


def _thread(tid: int, *functions: str, syscall: int = FUTEX, argument: int = 0x1000) -> Thread:
    frames = tuple(Frame(name, "mysqld", 0) for name in functions)
    return Thread(tid, tid, "mysqld", "S", Trust.EXACT, "mutex_wait", frames, syscall, argument=argument)


class Locks:
    """The memory of a fake process, which contains some locks."""

    def __init__(self, **at: bytes) -> None:
        self.at = {int(address[1:], 16): content for address, content in at.items()}

    def many(self, places: Any) -> list[bytes | None]:
        return [self._read(address, size) for address, size in places]

    def _read(self, address: int, size: int) -> bytes | None:
        for start, content in self.at.items():
            if start <= address and address + size <= start + len(content):
                return content[address - start :][:size]
        return None


MUTEX = struct.pack("<iIiIi", 2, 0, 77, 1, 0)


RWLOCK = struct.pack("<IIIIIIii", 0x0E, 1, 3, 3, 0, 0, 88, 0)


@pytest.mark.parametrize(
    ("function", "lock", "offset", "expected"),
    [
        ("pthread_mutex_lock", MUTEX, 0, ("mutex", (77,))),
        ("pthread_rwlock_rdlock", RWLOCK, 0, ("rwlock", (88,))),
        ("pthread_rwlock_rdlock", RWLOCK, 8, ("rwlock", (88,))),
        ("pthread_rwlock_rdlock", RWLOCK, 12, ("rwlock", (88,))),
        ("pthread_mutex_lock", b"", 0, ("mutex", ())),
    ],
    ids=["mutex", "rwlock", "its readers' word", "its writers' word", "unreadable lock"],
)
def test_owner_of_a_futex(function: str, lock: bytes, offset: int, expected: tuple[str, Any]) -> None:
    threads = [_thread(5, "__lll_lock_wait", function, "open_table", argument=0x1000 + offset)]
    [wait] = futexes.waits(threads, Locks(x1000=lock).many)
    assert (wait.waiter, wait.address, (wait.kind, wait.owners)) == (5, 0x1000, expected)


def test_conditions_and_other_calls_are_not_locks() -> None:
    threads = [
        _thread(5, "pthread_cond_wait", "os_event_wait_low"),
        _thread(6, "nanosleep", "pthread_mutex_lock", syscall=NANOSLEEP),
        _thread(7, "do_command", "a", "b", "c", "pthread_mutex_lock"),
    ]
    assert futexes.waits(threads, Locks(x1000=MUTEX).many) == []


BLOCKED = [BlockedRow(2, 1, "index d.t.PRIMARY"), BlockedRow(3, 1, None)]


def test_row_lock_waits_are_read_from_memory_if_sql_returns_none() -> None:
    for results in ({}, {"row_lock_waits": ()}):
        answers = with_blocked_rows(results, BLOCKED)
        [found] = blockers(evidence(answers=answers), "row_lock")
        assert (found.connection, found.waiting) == (1, 2)
        assert found.lock in ("a row lock", "a row lock on index d.t.PRIMARY")


def test_row_lock_waits_of_sql_and_memory_are_not_mixed() -> None:
    """Let SQL see that the lock has passed on to connection 2."""
    rows = ({"waiter": "1", "blocker": "2"}, {"waiter": "3", "blocker": "2"})
    answers = with_blocked_rows({"row_lock_waits": rows}, BLOCKED)
    [found] = blockers(evidence(answers=answers), "row_lock")
    assert (found.connection, found.waiting, found.lock) == (2, 2, "a row lock")
    assert "cycle" not in found.words


def test_row_lock_wait_of_sql_gets_its_index_from_memory() -> None:
    rows = ({"waiter": "2", "blocker": "1"},)
    [found] = blockers(evidence(answers=with_blocked_rows({"row_lock_waits": rows}, BLOCKED)), "row_lock")
    assert (found.connection, found.lock) == (1, "a row lock on index d.t.PRIMARY")
