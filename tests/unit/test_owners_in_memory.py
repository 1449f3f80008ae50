"""Connections, metadata locks and InnoDB's waits are read from the memory of a synthetic process."""

from __future__ import annotations

import struct
import threading
from typing import TYPE_CHECKING, Any

import pytest
from msgspec import structs

from innoscope._native import Member, Symbol
from innoscope.diagnose import process_list
from innoscope.diagnose.evidence import ConnectionActivity
from innoscope.memory import known_layouts
from innoscope.memory import layout as layouts
from innoscope.memory.layout import MemoryLayout
from innoscope.memory.locks import layout, metadata, sessions, srw, sync_array
from innoscope.memory.locks.futexes import Wait
from innoscope.memory.locks.layout import LayoutPart, LockLayout, ProcessMemory
from innoscope.memory.locks.owners import LockOwners
from innoscope.sampling.classify import default_classifier
from innoscope.sampling.model import Frame, Thread, Trust
from innoscope.sampling.snapshot_history import CLIENT
from unit.snapshots import snapshot_of, target, thread

if TYPE_CHECKING:
    from innoscope.target.model import Target

TID = 0x2D0


class FakeMemory(ProcessMemory):
    """The memory of a fake process, to which tests write bytes."""

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


def part(options: dict[str, Any], roots: dict[str, int], **offsets: int) -> LayoutPart:
    members = {
        name: Member((offset,), 4 if name == "word" else 8, "unsigned") for name, offset in offsets.items()
    }
    return LayoutPart(options, members, roots)


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


MDL = {"context": 200, "waiting_for": 208, "lock": 0x10, "holder": 0x18, "key": 0, "names": 4}
VTABLE = 0x7000


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


THD_TABLE, STRATEGY = 0x7800, 0x7900
SHARED, SHARED_READ, NO_READ_WRITE, EXCLUSIVE = 1, 3, 9, 10


def _stripped(version: tuple[int, ...]) -> LockLayout:
    """Return the catalog's layout of a stripped build whose variables are at fixed addresses."""
    generation = next(one for one in layout.servers() if one.fits("mysql", version))
    assert generation.sessions is not None
    assert generation.metadata is not None
    addresses = {
        generation.sessions.first: 0x100,
        generation.sessions.table: THD_TABLE,
        generation.metadata.of_objects: STRATEGY,
        generation.metadata.of_scopes: STRATEGY + 0x100,
    }
    symbols = {name: Symbol(address, 8) for name, address in addresses.items() if name}
    known = {name: Member((0,), 8, "unsigned") for name in symbols}
    bodies = {name: generation.parts[name] for name in ("sessions", "metadata")}
    parts = {name: layout._part(body, known, symbols) for name, body in bodies.items()}
    return LockLayout(sessions=parts["sessions"], metadata=parts["metadata"], tickets=VTABLE)


def _put_thd(
    memory: FakeMemory, found: LayoutPart, address: int, connection: int, table: int = THD_TABLE
) -> None:
    memory.put(address, table + 16)
    memory.put(
        address + found.offset("thread"), memory.thread(0x900000 + 0x1000 * connection, 70 + connection)
    )
    memory.put(address + found.offset("connection"), connection, size=4)
    memory.put(address + found.offset("text"), 0, 0)


@pytest.mark.parametrize("version", [(5, 7, 22), (8, 0, 31), (9, 7, 4)], ids=str)
@pytest.mark.parametrize("allocated", [True, False])
def test_thds_are_read_from_the_arrays_of_stripped_builds(version: tuple[int, ...], allocated: bool) -> None:
    found = _stripped(version).sessions
    assert found is not None
    memory = FakeMemory()
    memory.put(0x100, 0x10000)
    elements = {}
    for number in range(found.options["arrays"]):
        array = 0x10000 + number * found.size("array_bytes")
        inline = "inline" in found.members and not allocated
        elements[number] = array + found.offset("items") if inline else 0x80000 + 0x100 * number
        memory.put(array + found.offset("items"), elements[number])
        memory.put(array + found.offset("count"), 0)
        if "inline" in found.members:
            memory.put(array + found.offset("inline"), 0 if inline else 0xFFFFFFFF, size=4)
    last = 0x10000 + number * found.size("array_bytes")
    memory.put(elements[number], 0x200000, 0x300000)
    memory.put(last + found.offset("inline" if inline else "count"), 2, size=4)
    _put_thd(memory, found, 0x200000, 7)
    _put_thd(memory, found, 0x300000, 8, table=0x1234)
    assert [one.connection for one in sessions.read(memory, found, {77, 78})] == [7]


class ShiftingMemory(FakeMemory):
    """Fake memory in which an element of an array moves to the front after the front has been read once."""

    shift: tuple[int, ...] = ()

    def many(self, places: Any) -> list[bytes | None]:
        found = super().many(places)
        if self.shift and (self.shift[0], 8) in places:
            self.put(*self.shift)
            self.shift = ()
        return found


def test_a_thd_that_moves_while_the_array_is_read_is_found_once() -> None:
    """Let the last element move to the front, as when a connection ends after the front has been read."""
    found = _stripped((5, 7, 22)).sessions
    assert found is not None
    memory = ShiftingMemory()
    memory.put(0x100, 0x10000)
    memory.put(0x10000 + found.offset("items"), 0x80000)
    memory.put(0x10000 + found.offset("count"), 2)
    memory.put(0x80000, 0x300000, 0x300000)
    _put_thd(memory, found, 0x200000, 7)
    _put_thd(memory, found, 0x300000, 8)
    memory.shift = (0x80000, 0x200000)
    assert sorted(one.connection for one in sessions.read(memory, found, {77, 78})) == [7, 8]


def _granted(version: tuple[int, ...], **changes: int) -> tuple[int, ...]:
    """Return the owners of a lock that connection 7 holds and connection 8 is waiting for.

    ``changes`` replace fields of the holder's ticket and of the lock.
    """
    found = _stripped(version)
    mdl = found.metadata
    assert mdl is not None
    memory = FakeMemory()
    connections = [sessions.ServerSession(0x10000 * number, 70 + number, number, "") for number in (7, 8)]
    for one in connections:
        memory.put(one.address + mdl.offset("owner"), one.address)
        memory.put(one.address + mdl.offset("waiting_for"), 0)
        for offset in mdl.options["lists"]:
            memory.put(one.address + offset, 0)
    holder, waiter = (one.address for one in connections)
    memory.put(waiter + mdl.offset("waiting_for"), 0x5000)
    memory.put(holder + mdl.options["lists"][2], 0x5800)
    values = {"owner": holder, "table": VTABLE + 16, "holder": holder + mdl.offset("context"), "lock": 0x6000}
    values |= {"type": NO_READ_WRITE, "strategy": STRATEGY} | changes
    memory.put(holder + mdl.offset("owner"), values["owner"])
    request = {
        "table": VTABLE + 16,
        "holder": waiter + mdl.offset("context"),
        "lock": 0x6000,
        "type": SHARED_READ,
    }
    for ticket, content in ((0x5000, request), (0x5800, values)):
        memory.put_bytes(ticket, bytes(0x48))
        memory.put(ticket, content["table"])
        memory.put(ticket + mdl.offset("type"), content["type"], size=4)
        memory.put(ticket + mdl.offset("holder"), content["holder"])
        memory.put(ticket + mdl.offset("lock"), content["lock"])
    memory.put_bytes(0x6000, bytes(392))
    memory.put(0x6000 + mdl.offset("strategy"), values["strategy"])
    sets = [0] * 11
    sets[SHARED_READ] = 1 << NO_READ_WRITE | 1 << EXCLUSIVE
    memory.put(STRATEGY, *sets, size=2)
    [wait] = metadata.waits(memory, found, connections)
    assert (wait.waiter, wait.name) == (78, "the global metadata lock")
    return wait.owners


@pytest.mark.parametrize("version", [(5, 7, 22), (8, 0, 31), (9, 7, 4)], ids=str)
def test_the_holder_is_found_among_the_tickets_of_the_connections(version: tuple[int, ...]) -> None:
    assert _granted(version) == (77,)


@pytest.mark.parametrize(
    "change",
    [
        {"type": SHARED}, {"type": 99}, {"lock": 0x9000}, {"table": 0x1234}, {"holder": 0x1234},
        {"owner": 0x1234}, {"strategy": 0x1234},
    ],
    ids=lambda change: next(iter(change)),
)  # fmt: skip
def test_a_ticket_that_does_not_block_or_is_not_consistent_names_nobody(change: dict[str, int]) -> None:
    assert _granted((8, 0, 31), **change) == ()


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


@pytest.mark.parametrize(
    ("word", "owners"),
    [
        (0x20000000, ()),
        (0x1FFFFFFF, (76,)),
        (0x1FFFFFFE, ()),
        (0x10000000, (77,)),
        (0x0FFFFFFF, (77, 76)),
        (0, (77,)),
        (-1, (77, 76)),
        (-0x20000000, (77,)),
    ],
    ids=["free", "one reader", "two readers", "SX", "SX, reader", "X", "waits for reader", "X twice"],
)
def test_sx_and_single_readers_own_an_rw_lock_of_new_servers(word: int, owners: tuple[int, ...]) -> None:
    [latches] = [one.latches for one in layout.servers() if one.fits("mysql", (8, 0, 31))]
    assert latches is not None
    memory = FakeMemory()
    memory.put(0x100, 0x200)
    memory.put(0x108, 1)
    memory.put(0x200, 0x1000)
    memory.put(0x1000, 1, 2, 0x2000)
    waiter, writer, reader = (memory.thread(0xA0000 + 0x1000 * tid, tid) for tid in (78, 77, 76))
    memory.put(0x2000, 0x3000, 5, 0, 0, waiter, 1, *[0] * 12)
    memory.put(0x3000, word & 0xFFFFFFFF, 0, writer, reader, 0, 0, 0x4000)
    memory.put_bytes(0x4000, b"/build/storage/buf0buf.cc\0" + bytes(200))
    body = structs.asdict(latches)
    known = {"sync_wait_array": Member((0,), 8, "unsigned"), "sync_array_size": Member((0,), 8, "unsigned")}
    symbols = {"sync_wait_array": Symbol(0x100, 8), "sync_array_size": Symbol(0x108, 8)}
    body = {name: value for name, value in body.items() if value is not None}

    [wait] = sync_array.waits(memory, layout._part(body, known, symbols), {76, 77, 78})

    assert (wait.waiter, wait.owners, wait.name) == (78, owners, "an rw-lock of buf0buf.cc")


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
    def statement(connection: int, command: str, state: str) -> ConnectionActivity:
        return ConnectionActivity(connection, "app", "web1", command, state, 1, "")

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
        assert one.sessions is None or one.sessions.walk in sessions._WALKS
        assert one.metadata is None or one.metadata.tickets in {*metadata._WALKS, "contexts"}
        assert one.parts


def _bytes(content: int | str) -> bytes:
    return bytes.fromhex(content) if isinstance(content, str) else content.to_bytes(4, "little")


@pytest.mark.parametrize("version", [(5, 7, 22), (8, 0, 31), (9, 7, 4)], ids=str)
@pytest.mark.parametrize("part", ["sessions", "metadata", "latches"])
def test_each_number_and_instruction_of_the_catalog_is_required(
    version: tuple[int, ...], part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Test a build that contains every number and instruction, and builds that lack exactly one of these."""
    [body] = [one.parts[part] for one in layout.servers() if one.fits("mysql", version)]
    symbols = {name: Symbol(0x1000, 8) for name in layout._paths(body)}
    monkeypatch.setattr(
        layouts, "learn", lambda *_, **__: MemoryLayout(symbols, "dynsym", {}, {}, described=False)
    )
    every = [(function, one) for function, contents in body["code"].items() for one in contents]
    for missing in (None, *every):
        code = {
            function: b"\xcc".join(_bytes(one) for one in contents if (function, one) != missing)
            for function, contents in body["code"].items()
        }
        monkeypatch.setattr(known_layouts, "read_code", lambda *_, code=code: code)
        found = layout.learn(target(version=version))
        assert (getattr(found, part) is None) == (missing is not None), missing
        assert found.why.get(part, "").startswith(f"the layout of {part} differs") == (missing is not None)


def test_offsets_of_rw_locks_without_code_are_refused() -> None:
    [latches] = [one.latches for one in layout.servers() if one.fits("mysql", (8, 0, 31))]
    assert latches is not None
    with pytest.raises(ValueError, match="code is required with offsets"):
        structs.replace(latches, code={})
