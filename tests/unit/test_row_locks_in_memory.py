"""Row locks and their blockers are read from the memory of a synthetic process."""

from __future__ import annotations

import pytest

from innoscope._native import Member
from innoscope.memory.locks import lock_queue
from innoscope.memory.locks.blocked_rows import BlockedRow, BlockedRows
from innoscope.memory.locks.blockers import Blockers, Waiter
from innoscope.memory.locks.file_names import decoded
from innoscope.memory.locks.layout import LayoutPart, LockLayout
from innoscope.memory.locks.lock_queue import Lock, has_to_wait
from innoscope.memory.locks.rows import RowWaits
from innoscope.memory.locks.sessions import ServerSession
from innoscope.sampling.model import Blocked
from unit.fake_memory import FakeMemory
from unit.snapshots import thread

S, X, REC, TABLE, WAIT, GAP, NOT_GAP, INSERT = 2, 3, 0x20, 0x10, 0x100, 0x200, 0x400, 0x800
LOCK_BYTES, SLOT = 72, 2


def _part(**extra: int) -> LayoutPart:
    """Return a layout of transactions, indexes and locks. ``extra`` is ``blocker`` or the queues' members."""
    offsets = {
        "slot": 8, "data": 64, "thread": 8, "waiting_for": 16, "transaction": 0, "mode": 24, "index": 40,
        "index_name": 0, "table_name": 8, **extra,
    }  # fmt: skip
    members = {name: Member((offset,), 8, "unsigned") for name, offset in offsets.items()}
    sizes = {"data_bytes": 64, "lock_bytes": LOCK_BYTES}
    members |= {name: Member((0,), size, "structure") for name, size in sizes.items()}
    return LayoutPart({}, members, {"handlerton": 0x10, "system": 0x20})


STORED = _part(blocker=24)
SESSIONS = LayoutPart(
    {}, {name: Member((at,), 8, "unsigned") for name, at in (("connection", 8), ("thread", 16))}, {}
)
QUEUED = _part(table=0, count=0, array=8, next=32, space=48, page=56, bits=64)


class Server(FakeMemory):
    """A server with one table. The transaction of connection 0x10000 is at 0x11000."""

    def __init__(self) -> None:
        super().__init__()
        self.put(0x10, 0x100)
        self.put(0x108, SLOT)
        self.put(0x20, 0x200)
        self.put(0x200, 0x300)
        self.put(0x300, 1, 0x400)
        self.put(0x500, 0x600, 0x700)
        self.put_bytes(0x600, b"PRIMARY\0".ljust(200, b"\0"))
        self.put_bytes(0x700, b"my@002ddb/t1\0".ljust(200, b"\0"))

    def transaction(self, thd: int, lock: int = 0, blocker: int = 0) -> None:
        self.put(thd + 64 + SLOT * 64, thd + 0x1000)
        self.put(thd + 0x1000, 0, thd, lock, blocker)

    def lock(self, address: int, thd: int, mode: int, heap_no: int = 2, following: int = 0) -> int:
        self.put(address, thd + 0x1000, 0, 0, mode, following, 0x500, 7, 3, 128)
        self.put_bytes(address + LOCK_BYTES, (1 << heap_no).to_bytes(64, "little"))
        return address


A, B, C = 0x10000, 0x20000, 0x30000
NAME = "index my-db.t1.PRIMARY"


def test_stored_blocker_is_used_if_all_objects_refer_to_each_other() -> None:
    memory = Server()
    memory.transaction(A)
    memory.transaction(B, memory.lock(0x5000, B, X | REC | WAIT), A + 0x1000)
    rows = RowWaits(memory, STORED)
    for _ in range(2):
        assert rows.read({B: 1, A: 1}) == {B: (A, NAME)}


@pytest.mark.parametrize("damage", ["thread", "transaction", "mode", "blocker", "connection"])
def test_objects_that_contradict_each_other_yield_no_blocker(damage: str) -> None:
    memory = Server()
    memory.transaction(A)
    memory.transaction(B, memory.lock(0x5000, B, X | REC | WAIT), A + 0x1000)
    match damage:
        case "thread":  # the transaction belongs to another connection
            memory.put(B + 0x1008, C)
        case "transaction":  # the lock belongs to another transaction
            memory.put(0x5000, A + 0x1000)
        case "mode":  # the lock was granted
            memory.put(0x5018, X | REC)
        case "blocker":  # the blocking transaction has no connection: XA PREPARE, or recovered
            memory.put(A + 0x1008, 0)
        case "connection":  # the connection uses another transaction
            memory.put(A + 64 + SLOT * 64, C + 0x1000)
    found = RowWaits(memory, STORED).read({B: 1})
    assert found in ({}, {B: (None, NAME)})


def test_waiter_whose_lock_changes_while_it_is_read_is_omitted() -> None:
    memory = Server()
    memory.transaction(A)
    memory.transaction(B, memory.lock(0x5000, B, X | REC | WAIT), A + 0x1000)
    rows = RowWaits(memory, STORED)
    read = rows._connections

    def changed(transactions: set[int]) -> dict[int, int]:
        memory.put(B + 0x1010, 0)  # granted
        return read(transactions)

    rows._connections = changed  # type: ignore[method-assign]
    assert rows.read({B: 1}) == {}


def test_first_conflicting_lock_in_the_queue_is_the_blocker() -> None:
    memory = Server()
    memory.put(0x400, memory.lock(0x4000, C, X | REC, heap_no=3, following=0x4100))  # on another record
    memory.lock(0x4100, A, X | REC, following=0x4200)
    memory.lock(0x4200, B, X | REC | WAIT, following=0x4300)
    memory.lock(0x4300, C, X | REC | WAIT)
    memory.transaction(A)
    memory.transaction(B, 0x4200)
    memory.transaction(C, 0x4300)
    rows = RowWaits(memory, QUEUED)
    for _ in range(2):
        assert rows.read({B: 1, C: 1}) == {B: (A, NAME), C: (A, NAME)}
    memory.put(0x4000 + 32, 0x4200)  # A commits, and B is granted
    memory.put(0x4200 + 24, X | REC)
    memory.put(B + 0x1010, 0)
    assert rows.read({B: 1, C: 1}) == {C: (B, NAME)}


def test_waits_of_the_snapshot_with_the_most_waiters_are_kept() -> None:
    memory = Server()
    sessions = [ServerSession(thd, tid, 10 * tid, "") for thd, tid in ((A, 1), (B, 2), (C, 3))]
    blocked = BlockedRows(memory)

    def note(holder: int, waiters: dict[int, int]) -> None:
        memory.transaction(holder)
        for number, thd in enumerate(waiters):
            lock = memory.lock(0x5000 + 0x100 * number, thd, X | REC | WAIT)
            memory.transaction(thd, lock, holder + 0x1000)
        waits = {tid: "row_lock" if tid in waiters.values() else "idle" for tid in (1, 2, 3)}
        blocked.note(STORED, sessions, {tid: thread(tid, wait=wait) for tid, wait in waits.items()})

    note(A, {B: 2})
    assert blocked.waits == (BlockedRow(20, 10, NAME),)
    note(C, {A: 1, B: 2})
    note(A, {C: 3})
    assert set(blocked.waits) == {BlockedRow(10, 30, NAME), BlockedRow(20, 30, NAME)}


def test_walk_over_a_queue_is_bounded() -> None:
    memory = Server()
    memory.put(0x400, memory.lock(0x4000, A, X | REC, heap_no=3, following=0x4000))  # a cycle
    memory.transaction(B, memory.lock(0x5000, B, X | REC | WAIT))
    assert RowWaits(memory, QUEUED).read({B: 1}) == {B: (None, NAME)}
    memory.put(0x300, 0)  # a hash table without cells
    assert RowWaits(memory, QUEUED).read({B: 1}) == {B: (None, NAME)}
    memory.put(0x5040, 1 << 40)  # a bitmap that is too large
    assert lock_queue.read(memory, QUEUED, [0x5000]) == {}


@pytest.mark.parametrize(
    ("lock", "other", "waits"),
    [
        (X, X, True),
        (S, X, True),
        (X, S, True),
        (S, S, False),
        (X | GAP, X, False),
        (X, X | GAP, False),
        (X | INSERT | GAP, X | GAP, True),
        (X | INSERT | GAP, X | NOT_GAP, False),
        (X, X | INSERT | GAP, False),
        (X | NOT_GAP, X | NOT_GAP, True),
    ],
)
def test_conflicts_are_those_of_the_server(lock: int, other: int, waits: bool) -> None:
    assert has_to_wait(Lock(1, lock, 0, (0, 0), 4), Lock(2, other, 0, (0, 0), 4)) is waits
    assert not has_to_wait(Lock(1, lock, 0, (0, 0), 4), Lock(1, other, 0, (0, 0), 4)), (
        "of the same transaction"
    )


def test_locks_on_the_supremum_block_only_inserts() -> None:
    assert not has_to_wait(Lock(1, X, 0, (0, 0), 2), Lock(2, X, 0, (0, 0), 2))
    assert has_to_wait(Lock(1, X | INSERT, 0, (0, 0), 2), Lock(2, X, 0, (0, 0), 2))


def test_names_of_files_are_decoded() -> None:
    assert decoded("a@002db@0024") == "a-b$"
    assert decoded("caf@f0c") == "caf@f0c"
    # From the documentation of MariaDB, Identifier to File Name Mapping.
    assert decoded("this_is_@y0@g0@h0@r0@o0@i1@g0") == "this_is_таблица"
    assert decoded("@0r@0R@8Y@@b@B@") == "ëËΣⓑＢ"
    assert decoded("@0") == "@0"


def test_unprintable_characters_are_not_decoded() -> None:
    assert decoded("@000a@001b@d800") == "@000a@001b@d800"


class Clock:
    """A clock that advances at each call, so that each read takes ``step_s``."""

    def __init__(self, step_s: float) -> None:
        self._step_s, self._now = step_s, 0.0

    def __call__(self) -> float:
        self._now += self._step_s
        return self._now


#: Duration of a read that uses up the budget of the next snapshot.
OVERDRAWN_S = 0.0115


def _blockers(memory: Server, read_s: float = OVERDRAWN_S) -> Blockers:
    """Return a finder of blockers for a server in which connection 41 blocks threads 21 and 31."""
    memory.transaction(A)
    memory.put(A + 8, 41, memory.thread(0x90000, 11))
    for thd in (B, C):
        memory.transaction(thd, memory.lock(thd + 0x5000, thd, X | REC | WAIT), A + 0x1000)
    return Blockers(memory, LockLayout(sessions=SESSIONS, rows=STORED), Clock(read_s))


WAITERS = (Waiter(21, "row_lock", B, 42, 1), Waiter(31, "row_lock", C, 43, 1))


def test_new_waiters_are_read_at_once_although_the_last_read_took_longer_than_its_share() -> None:
    memory = Server()
    blockers, blocked = _blockers(memory, read_s=0.0016), Blocked(41, NAME, 11)
    assert blockers.find(WAITERS[:1], {21, 31}) == {21: blocked}
    assert blockers.find(WAITERS, {21, 31}) == {21: blocked, 31: blocked}


def test_time_without_waiters_is_saved_for_later_reads() -> None:
    blockers = _blockers(Server(), read_s=0.0065)
    one, other = WAITERS
    assert all(blockers.find([waiter], {21, 31}) for waiter in (one, other))
    assert blockers.find([one], {21, 31}) == {}, "the budget is used up"
    for _ in range(12):
        assert blockers.find([], {21, 31}) == {}
    assert all(blockers.find([waiter], {21, 31}) for waiter in (one, other))


def test_reads_beyond_the_budget_happen_in_every_nth_snapshot() -> None:
    memory = Server()
    blockers, blocked = _blockers(memory), Blocked(41, NAME, 11)
    assert blockers.find(WAITERS, {21, 31}) == {21: blocked, 31: blocked}
    memory.put(B + 0x1010, 0)  # granted, but 41 still blocks thread 31: the results of the last read are kept
    assert blockers.find(WAITERS, {21, 31}) == {21: blocked, 31: blocked}
    assert blockers.find(WAITERS, {21, 31}) == {31: blocked}, "the next read"


def test_blocker_that_blocks_no_thread_any_more_is_not_kept() -> None:
    memory = Server()
    blockers = _blockers(memory)
    assert len(blockers.find(WAITERS, {21, 31})) == 2
    for thd in (B, C):
        memory.put(thd + 0x1018, 0x99000)  # another transaction blocks them
    assert blockers.find(WAITERS, {21, 31}) == {}


def test_thread_that_has_run_is_unknown_until_the_next_read() -> None:
    memory = Server()
    memory.transaction(A)
    memory.put(A + 8, 41, 0)
    memory.transaction(B, memory.lock(0x5000, B, X | REC | WAIT), A + 0x1000)
    blockers = Blockers(memory, LockLayout(sessions=SESSIONS, rows=STORED), Clock(OVERDRAWN_S))
    waiter = Waiter(21, "row_lock", B, 42, 1)
    assert blockers.find([waiter], {21}) == {21: Blocked(41, NAME)}
    assert blockers.find([waiter._replace(runs=2)], {21}) == {}


def test_locks_without_a_layout_have_no_blocker() -> None:
    blockers = Blockers(Server(), LockLayout())
    waiters = [Waiter(21, wait, B, 42, 1) for wait in ("row_lock", "metadata_lock")]
    assert blockers.find(waiters, {21}) == {}
