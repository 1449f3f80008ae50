"""Connections, metadata locks and InnoDB's waits are read from the memory of a synthetic process."""

from __future__ import annotations

import struct
import threading
from typing import TYPE_CHECKING

import pytest

from innoscope._native import Member
from innoscope.memory.locks import layout, metadata, sessions, srw, sync_array
from innoscope.memory.locks.futexes import Wait
from innoscope.memory.locks.layout import LayoutPart, LockLayout
from innoscope.memory.locks.owners import LockOwners
from innoscope.sampling.model import Frame, Thread, Trust
from unit.snapshots import snapshot_of, target, thread

if TYPE_CHECKING:
    from innoscope.target.model import Target

from unit.fake_memory import MDL, THD, VTABLE, FakeMemory, part, thd


def test_a_linked_list_is_read_up_to_its_sentinel() -> None:
    memory = FakeMemory()
    memory.put(0x100, 0x1000)
    thd(memory, 0x1000, 0x2000, 71, 7, "SELECT 'secret' FROM t")
    thd(memory, 0x2000, 0x3000, 81, 8)
    thd(memory, 0x3000, 0x4000, 99, 9)
    memory.put(0x4000, 0, 0)
    found = sessions.read(memory, part({"walk": "linked"}, {"first": 0x100}, first=0, **THD), {71, 81})
    assert [(one.thread, one.connection, one.text) for one in found] == [
        (71, 7, "SELECT ? FROM `t`"),
        (81, 8, ""),
    ]


def test_reading_a_circular_list_ends() -> None:
    memory = FakeMemory()
    memory.put(0x100, 0x1000)
    thd(memory, 0x1000, 0x1000, 71, 7)
    assert len(sessions.read(memory, part({"walk": "linked"}, {"first": 0x100}, first=0, **THD), {71})) == 1


def test_a_std_set_is_read_completely() -> None:
    """Build a std::set, whose nodes consist of color, parent, left, right and value."""
    memory = FakeMemory()
    memory.put(0x100, 0x200)
    memory.put(0x210, 0x300)
    for node, left, right, value in (
        (0x300, 0x400, 0x500, 0x1000),
        (0x400, 0, 0, 0x2000),
        (0x500, 0, 0, 0x3000),
    ):
        memory.put(node, 1, 0, left, right, value)
    for number, address in enumerate((0x1000, 0x2000, 0x3000), 1):
        thd(memory, address, 0, 70 + number, number)
    found = sessions.read(memory, part({"walk": "tree"}, {"first": 0x100}, **THD), {71, 72, 73})
    assert sorted(one.connection for one in found) == [1, 2, 3]


@pytest.mark.parametrize("text", ["\x00\x01\x02", "ab\x07cd", "�ï¿½", "\ufffd"])
def test_unprintable_statement_text_is_not_shown(text: str) -> None:
    memory = FakeMemory()
    memory.put(0x100, 0x1000)
    thd(memory, 0x1000, 0x4000, 71, 7, text)
    memory.put(0x4000, 0, 0)
    [found] = sessions.read(memory, part({"walk": "linked"}, {"first": 0x100}, first=0, **THD), {71})
    assert found.text == "" or found.text.isprintable()


def _locked(memory: FakeMemory, *, ring: bool) -> list[sessions.ServerSession]:
    """Set up a lock on d.t that connection 7 holds and 8 is waiting for; 9 is waiting for something else."""
    connections = [sessions.ServerSession(0x10000 * number, 70 + number, number, "") for number in (7, 8, 9)]
    holder, waiter, other = (one.address for one in connections)
    for one in connections:
        memory.put(one.address + 208, 0)
    memory.put(waiter + 208, 0x5000)
    memory.put(0x5000, VTABLE + 16, 0, 0x6000, waiter + 200)
    memory.put(other + 208, 0x5500)
    memory.put(0x5500, 0x9999, 0, 0x6000, other + 200)
    names = b"\x02d\0t\0"
    memory.put_bytes(0x6000, struct.pack("<HH", len(names), 1) + names + bytes(392))
    ticket = 0x5800
    memory.put(0x6000 + 0x200, ticket + 0x20 if ring else ticket)
    memory.put(ticket, VTABLE + 16, 0, 0x6000, holder + 200, 0x6200 if ring else 0)
    return connections


@pytest.mark.parametrize("ring", [True, False])
def test_the_owner_of_a_metadata_lock_is_found(ring: bool) -> None:
    memory = FakeMemory()
    connections = _locked(memory, ring=ring)
    options = {"tickets": "ring" if ring else "linked", "namespaces": ["global", "schema", "table"]}
    mdl = part(options, {}, first=0x200, next=0x20, **MDL)
    [wait] = metadata.waits(memory, LockLayout(metadata=mdl, tickets=VTABLE), connections)
    assert (wait.waiter, wait.owners, wait.name) == (78, (77,), "the metadata lock of table d.t")


def test_a_lock_is_reported_with_the_wait_class_of_most_waiters() -> None:
    """Let the first waiter, an ALTER TABLE, be on the CPU in the last snapshot."""
    found = LockOwners(target())
    for wait in ("metadata_lock", "on_cpu"):
        alter, reader, holder = thread(77, wait=wait), thread(78, wait="metadata_lock"), thread(79)
        waits = [Wait(one, metadata.KIND, 0x6000, (79,), "the lock of t1") for one in (77, 78)]
        found._add(0x6000, waits, {one.ns_tid: one for one in (alter, reader, holder)}, frozenset())
    [held] = found.held_locks()
    assert (held.owner, held.waiters, held.wait) == (79, (77, 78), "metadata_lock")


@pytest.mark.parametrize(("wait", "pending"), [("metadata_lock", True), ("idle", False)])
def test_waits_are_pending_until_the_layout_is_known(
    wait: str, pending: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = threading.Event()

    def learn(_: Target) -> LockLayout:
        known.wait()
        return LockLayout()

    monkeypatch.setattr(layout, "learn", learn)
    found = LockOwners(target())
    found.note(snapshot_of(thread(77, wait=wait)))
    assert found.pending == pending
    known.set()
    found._learner.join()
    found.note(snapshot_of(thread(77, wait=wait)))
    assert not found.pending


LATCH = {
    "used": 0, "size": 8, "cell": 16, "object": 0, "request": 8, "waiting": 16, "thread": 24,
    "writer": 8, "word": 0, "made_in": 16, "mutex_made_in": 16, "array": 0,
}  # fmt: skip


def _rw_lock(word: int) -> tuple[FakeMemory, LayoutPart]:
    """Return memory with an rw-lock, and the lock's layout; ``word`` is the value of lock_word.

    Thread 78 is waiting for the lock; thread 77 was the last writer.
    """
    memory = FakeMemory()
    memory.put(0x100, 0x1000)
    memory.put(0x1000, 1, 2, 0x2000)
    waiter, writer = memory.thread(0xA0000, 78), memory.thread(0xB0000, 77)
    memory.put(0x2000, 0x3000, 351, 1, waiter)
    memory.put(0x2000 + 32, 0, 0, 0, 0)
    memory.put(0x3000, word, writer, 0x4000)
    memory.put_bytes(0x4000, b"/build/storage/buf0buf.c\0" + bytes(200))
    options = {"cells": "one", "locks": (351,), "mutexes": (354,), "writer_up_to": 0}
    members = part(options, {"array": 0x100}, **LATCH)
    cell = {**members.members, "cell_bytes": Member((0,), 32, "structure")}
    return memory, LayoutPart(members.options, cell, members.roots)


@pytest.mark.parametrize(("word", "owners"), [(0, (77,)), ((1 << 32) - 3, (77,)), (4, ())])
def test_the_writer_of_an_rw_lock_is_its_owner_while_it_is_locked(word: int, owners: tuple[int, ...]) -> None:
    memory, members = _rw_lock(word)
    [wait] = sync_array.waits(memory, members, {77, 78})
    assert (wait.waiter, wait.kind, wait.owners) == (78, "InnoDB rw-lock", owners)
    assert wait.name == "an rw-lock of buf0buf.c"


@pytest.mark.parametrize(
    ("waiter", "owner", "found"),
    [
        ("mutex_wait", "on_cpu", [(78, (77,))]),
        ("mutex_wait", "row_lock", [(78, ())]),
        ("row_lock", "mutex_wait", []),
    ],
)
def test_a_thread_that_waited_for_a_row_in_the_snapshot_neither_waits_for_a_latch_nor_owns_one(
    waiter: str, owner: str, found: list[tuple[int, tuple[int, ...]]]
) -> None:
    owners = LockOwners(target())
    memory, members = _rw_lock(0)
    owners._memory, owners._layout = memory, LockLayout(latches=members)
    snapshot = snapshot_of(thread(78, wait=waiter), thread(77, wait=owner))
    waits = owners._latched(snapshot, {77, 78}, {waiter, owner})
    assert [(one.waiter, one.owners) for one in waits] == found


@pytest.mark.parametrize("word", [0, 4], ids=["writers", "readers"])
@pytest.mark.parametrize(
    "name", ["ssux_lock_impl<false>::wr_wait(unsigned int)", None], ids=["named", "stripped"]
)
def test_the_owner_of_a_page_latch_in_mariadb_is_found(word: int, name: str | None) -> None:
    memory = FakeMemory()
    memory.put(0x1000, 0, 0, memory.thread(0xB0000, 77))
    memory.put(0x2000, 0, 0, 0x1234)
    functions = ("syscall", name, name, "btr_cur_t::search_leaf", "row_ins")
    frames = tuple(Frame(function, "mariadbd", 1) for function in functions)
    threads = [
        Thread(tid, tid, "mariadbd", "S", Trust.EXACT, "mutex_wait", frames, 202, argument=place + word)
        for tid, place in ((78, 0x1000), (79, 0x2000))
    ]
    [wait] = srw.waits(memory, threads, {77, 78, 79})
    assert (wait.waiter, wait.address, wait.owners) == (78, 0x1000, (77,))
