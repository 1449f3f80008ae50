"""Connections, metadata locks and InnoDB's waits are read from the memory of a synthetic process."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from innoscope._native import Member
from innoscope.diagnose import process_list
from innoscope.diagnose.evidence import Statement
from innoscope.memory.locks import layout, metadata, sessions, srw, sync_array
from innoscope.memory.locks.layout import LockLayout, Part, ProcessMemory
from innoscope.sampling.classify import default_classifier
from innoscope.sampling.model import Frame, Thread, Trust
from innoscope.sampling.snapshot_history import CLIENT

TID = 0x2D0


class FakeMemory(ProcessMemory):
    """A process with the given bytes at the given addresses."""

    def __init__(self) -> None:
        self._bytes: dict[int, int] = {}

    def put(self, address: int, *values: int, size: int = 8) -> None:
        for place, value in enumerate(values):
            self.put_bytes(address + place * size, value.to_bytes(size, "little"))

    def put_bytes(self, address: int, content: bytes) -> None:
        self._bytes |= {address + place: value for place, value in enumerate(content)}

    def thread(self, handle: int, tid: int) -> int:
        self.put(handle + TID, tid, size=4)
        return handle

    def many(self, places: Any) -> list[bytes | None]:
        return [self._range(address, size) for address, size in places]

    def _range(self, address: int, size: int) -> bytes | None:
        found = [self._bytes.get(address + place) for place in range(size)]
        return None if None in found else bytes(one for one in found if one is not None)


def part(options: dict[str, Any], roots: dict[str, int], **offsets: int) -> Part:
    members = {
        name: Member((offset,), 4 if name == "word" else 8, "unsigned") for name, offset in offsets.items()
    }
    return Part(options, members, roots)


THD = {"next": 8, "thread": 16, "connection": 24, "text": 32, "length": 40}


def thd(memory: FakeMemory, address: int, following: int, tid: int, connection: int, text: str = "") -> None:
    handle = memory.thread(0x900000 + 0x1000 * connection, tid)
    memory.put(address, 0, following, handle, connection, address + 0x500 if text else 0, len(text))
    memory.put_bytes(address + 0x500, text.encode())


def test_a_linked_list_is_read_up_to_its_sentinel() -> None:
    memory = FakeMemory()
    memory.put(0x100, 0x1000)
    thd(memory, 0x1000, 0x2000, 71, 7, "SELECT 'secret' FROM t")
    thd(memory, 0x2000, 0x3000, 81, 8)
    thd(memory, 0x3000, 0x4000, 99, 9)
    memory.put(0x4000, 0, 0)
    found = sessions.read(memory, part({"walk": "linked"}, {"first": 0x100}, first=0, **THD), {71, 81})
    assert [(one.thread, one.connection, one.text) for one in found] == [
        (71, 7, "SELECT ? FROM t"),
        (81, 8, ""),
    ]


def test_reading_a_circular_list_ends() -> None:
    memory = FakeMemory()
    memory.put(0x100, 0x1000)
    thd(memory, 0x1000, 0x1000, 71, 7)
    assert len(sessions.read(memory, part({"walk": "linked"}, {"first": 0x100}, first=0, **THD), {71})) > 1


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


MDL = {"context": 200, "waiting_for": 208, "lock": 0x10, "holder": 0x18, "key": 0, "names": 4}
VTABLE = 0x7000


def _locked(memory: FakeMemory, *, ring: bool) -> list[sessions.Session]:
    """Set up a lock on d.t that connection 7 holds and 8 waits for; 9 waits for something else."""
    connections = [sessions.Session(0x10000 * number, 70 + number, number, "") for number in (7, 8, 9)]
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


LATCH = {
    "used": 0, "size": 8, "cell": 16, "object": 0, "request": 8, "waiting": 16, "thread": 24,
    "writer": 8, "word": 0, "made_in": 16, "mutex_made_in": 16, "array": 0,
}  # fmt: skip


@pytest.mark.parametrize(("word", "owners"), [(0, (77,)), ((1 << 32) - 3, (77,)), (4, ())])
def test_the_writer_of_an_rw_lock_is_its_owner_while_it_is_locked(word: int, owners: tuple[int, ...]) -> None:
    memory = FakeMemory()
    memory.put(0x100, 0x1000)
    memory.put(0x1000, 1, 2, 0x2000)
    waiter, writer = memory.thread(0xA0000, 78), memory.thread(0xB0000, 77)
    memory.put(0x2000, 0x3000, 351, 1, waiter)
    memory.put(0x2000 + 32, 0, 0, 0, 0)
    memory.put(0x3000, word, writer, 0x4000)
    memory.put_bytes(0x4000, b"/build/storage/buf0buf.c\0" + bytes(200))
    members = part({"cells": "one"}, {"array": 0x100}, **LATCH)
    members = Part(
        members.options, {**members.members, "cell_bytes": Member((0,), 32, "structure")}, members.roots
    )
    [wait] = sync_array.waits(memory, members, {77, 78})
    assert (wait.waiter, wait.kind, wait.owners) == (78, "InnoDB rw-lock", owners)
    assert wait.name == "an rw-lock of buf0buf.c"


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


def test_the_process_list_is_translated_to_wait_classes() -> None:
    def statement(connection: int, command: str, state: str) -> Statement:
        return Statement(connection, "app", "web1", command, state, 1, "")

    statements = (
        statement(1, "Sleep", ""), statement(2, "Query", "updating"),
        statement(3, "Query", "Waiting for table metadata lock"),
        statement(4, "Query", "Sorting result"), statement(5, "Daemon", "Waiting on empty queue"),
    )  # fmt: skip
    snapshot = process_list.summary(7.0, statements, ({"connection": "2", "state": "LOCK WAIT"},))
    assert snapshot.threads == {
        (CLIENT, "idle"): 1, (CLIENT, "row_lock"): 1, (CLIENT, "metadata_lock"): 1, (CLIENT, "other"): 1,
    }  # fmt: skip


def test_the_catalogs_refer_to_known_classes_and_readers() -> None:
    assert process_list.known_classes() <= set(default_classifier().catalog.classes)
    for one in layout.servers():
        assert one.sessions is not None
        assert one.sessions.walk in sessions._WALKS
        assert one.metadata is not None
        assert one.metadata.tickets in metadata._WALKS
