"""Catalogs locate connections and locks in stripped builds, and map the process list to wait classes."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import structs

from innoscope._native import Member, Symbol
from innoscope.diagnose import process_list
from innoscope.diagnose.evidence import ConnectionActivity
from innoscope.memory import known_layouts
from innoscope.memory import layout as layouts
from innoscope.memory.layout import MemoryLayout
from innoscope.memory.locks import layout, metadata, sessions, sync_array
from innoscope.memory.locks.layout import LayoutPart, LockLayout
from innoscope.sampling.classify import default_classifier
from innoscope.sampling.snapshot_history import CLIENT
from unit.fake_memory import VTABLE, FakeMemory
from unit.snapshots import target

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
