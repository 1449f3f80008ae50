"""The memory of a fake server, for the targets `locks` and `statements` and their seeds.

An input is the memory from BASE on. Its first byte selects how the server stores its connections and locks.
tests/fuzz/rust/targets/statements.rs has the same layout of connections.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from innoscope._native import Member
from innoscope.memory.locks.layout import VTABLE, LayoutPart, LockLayout, ProcessMemory
from innoscope.memory.thread_descriptor import descriptor

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from innoscope.memory.locks.sessions import ServerSession

BASE: Final = 0x2000_0000_0000
BYTES: Final = 64 << 10
#: Bits of the first byte. The bits below them select one of WALKS, and the bits above them one of TICKETS.
SHORT_IDS, INDIRECT_NAMES, QUEUES = 4, 8, 16
WALKS: Final = ("linked", "tree", "arrays", "arrays")
TICKETS: Final = ("linked", "ring", "contexts")
TICKETS_UNIT: Final = 32
#: Offsets of the variables.
_FIRST, _HANDLERTON, _SYSTEM = 8, 16, 24
_TICKET_TABLE, _OBJECTS, _SCOPES = 0x80, 0xC0, 0xE0
#: The first offset that is not a variable.
_HEAP: Final = 0x100
_THD_BYTES, _DESCRIPTOR_BYTES = 0xC0, 0x400
_SESSION: Final = {
    "next": 8, "thread": 16, "connection": 24, "text": 32, "length": 40, "query": 48, "user": 56,
    "schema": 64, "command": 72, "items": 8, "count": 16,
}  # fmt: skip
_METADATA: Final = {
    "context": 80, "waiting_for": 88, "owner": 96, "next": 8, "lock": 16, "holder": 24, "type": 32, "key": 0,
    "names": 4, "first": 400, "strategy": 408,
}  # fmt: skip
_LISTS: Final = (104, 112, 120)
_ROWS: Final = {
    "slot": 0, "data": 128, "thread": 8, "waiting_for": 16, "transaction": 0, "mode": 24, "index": 40,
    "index_name": 0, "table_name": 8,
}  # fmt: skip
_STORED: Final = {"blocker": 24}
_QUEUE: Final = {"table": 0, "count": 0, "array": 8, "next": 32, "space": 48, "page": 56, "bits": 64}
_LOCK_BYTES: Final = 72
_X, _RECORD, _WAITING = 3, 0x20, 0x100


class Fuzzed(ProcessMemory):
    """Memory that consists of an input. Nothing else is mapped."""

    def __init__(self, content: bytes) -> None:
        super().__init__(0)
        self._content = content

    def many(self, places: Sequence[tuple[int, int]]) -> list[bytes | None]:
        """Return the bytes at each ``(address, size)``; None if the address is not mapped."""
        content, end = self._content, len(self._content)
        starts = (((address - BASE) & (1 << 64) - 1, size) for address, size in places)
        return [content[start : start + size] if start + size <= end else None for start, size in starts]


def layout(kind: int) -> LockLayout:
    """Return the layout that the first byte of an input selects."""
    walk, tickets = kind & 3, TICKETS[kind // TICKETS_UNIT % len(TICKETS)]
    roots = {"first": BASE + _FIRST}
    members = _members(_SESSION) | {"first": Member((0,), 8, "pointer")}
    members |= {"array_bytes": Member((0,), 64, "structure")}
    if WALKS[walk] == "arrays":
        roots["table"] = BASE
    if walk == WALKS.index("arrays") + 1:
        members["inline"] = Member((4,), 4, "unsigned")
    metadata = {"tickets": tickets, "namespaces": ("global", "schema", "table", "user"), "lists": _LISTS}
    rows = _ROWS | (_QUEUE if kind & QUEUES else _STORED)
    sizes = {"data_bytes": Member((0,), 8, "structure"), "lock_bytes": Member((0,), _LOCK_BYTES, "structure")}
    return LockLayout(
        sessions=LayoutPart({"walk": WALKS[walk], "arrays": 4}, members, roots),
        metadata=LayoutPart(
            metadata, _members(_METADATA), {"of_objects": BASE + _OBJECTS, "of_scopes": BASE + _SCOPES}
        ),
        rows=LayoutPart(
            {}, _members(rows) | sizes, {"handlerton": BASE + _HANDLERTON, "system": BASE + _SYSTEM}
        ),
        tickets=BASE + _TICKET_TABLE,
    )


def _members(offsets: Mapping[str, int]) -> dict[str, Member]:
    sizes: dict[str, Any] = {"command": 4}
    return {name: Member((offset,), sizes.get(name, 8), "unsigned") for name, offset in offsets.items()}


class _Arena:
    """Memory to which a seed is written."""

    def __init__(self, kind: int) -> None:
        self._content = bytearray(BYTES)
        self._content[0] = kind
        self._end = _HEAP

    def allocate(self, size: int) -> int:
        place, self._end = self._end, self._end + -(-size // 8) * 8
        if self._end > BYTES:
            raise ValueError("the seed is too large")
        return BASE + place

    def put(self, address: int, *values: int) -> None:
        for place, value in enumerate(values):
            start = address - BASE + 8 * place
            self._content[start : start + 8] = value.to_bytes(8, "little")

    def text(self, content: bytes) -> int:
        address = self.allocate(len(content) + 1)
        self._content[address - BASE : address - BASE + len(content)] = content
        return address

    def bytes(self) -> bytes:
        return bytes(self._content[: self._end])


def seed(kind: int, sessions: Sequence[ServerSession], names: tuple[bytes, bytes]) -> bytes:
    """Return an input with these connections of a real server.

    The first connection holds locks on a row and a table, for which the other connections are waiting.
    ``names`` contains the names of the user and the schema.
    """
    arena = _Arena(kind)
    arena.put(BASE + _TICKET_TABLE + VTABLE, 0)
    thds = [_connection(arena, kind, one, names) for one in sessions]
    if WALKS[kind & 3] == "arrays":
        for thd in thds:
            arena.put(thd, BASE + VTABLE)
    arena.put(BASE + _FIRST, _walked(arena, kind, thds))
    _row_locks(arena, kind, thds)
    _metadata_locks(arena, kind, thds)
    return bytes([kind]) + arena.bytes()[1:]


def _connection(arena: _Arena, kind: int, session: ServerSession, names: tuple[bytes, bytes]) -> int:
    thd, handle = arena.allocate(_THD_BYTES), arena.allocate(_DESCRIPTOR_BYTES)
    for own in descriptor().own:
        arena.put(handle + own, handle)
    arena.put(handle + descriptor().tid, session.thread)
    text = session.text.encode()
    values = {
        "thread": session.thread if kind & SHORT_IDS else handle,
        "connection": session.connection,
        "text": arena.text(text),
        "length": len(text),
        "query": session.connection + 100,
        "command": 3,
    }
    user, schema = (arena.text(name) for name in names)
    if kind & INDIRECT_NAMES:
        arena.put(thd + 0xB0, user)
        user = thd + 0xB0
    for name, value in (values | {"user": user, "schema": schema}).items():
        arena.put(thd + _SESSION[name], value)
    return thd


def _walked(arena: _Arena, kind: int, thds: Sequence[int]) -> int:
    """Link the connections as ``kind`` selects, and return the value of the variable that points to them."""
    match WALKS[kind & 3]:
        case "linked":
            sentinel = arena.allocate(16)
            for thd, following in zip(thds, [*thds[1:], sentinel], strict=True):
                arena.put(thd + _SESSION["next"], following)
            return thds[0]
        case "tree":
            header, nodes = arena.allocate(40), [arena.allocate(40) for _ in thds]
            for place, (node, thd) in enumerate(zip(nodes, thds, strict=True)):
                children = [nodes[one] if one < len(nodes) else 0 for one in (2 * place + 1, 2 * place + 2)]
                arena.put(node, 1, 0, *children, thd)
            arena.put(header + 16, nodes[0])
            return header
        case _:
            first, items = arena.allocate(4 * 64), arena.allocate(8 * len(thds))
            arena.put(items, *thds)
            arena.put(first, (1 << 32) * 0xFFFF_FFFF, items, len(thds))
            arena.put(first + 64, 1 << 32, thds[0])
            return first


def _row_locks(arena: _Arena, kind: int, thds: Sequence[int]) -> None:
    handlerton, index = arena.allocate(8), arena.allocate(16)
    arena.put(BASE + _HANDLERTON, handlerton)
    arena.put(
        index, arena.text(b"PRIMARY".ljust(200, b"\0")), arena.text(b"shop/my@002dorders".ljust(200, b"\0"))
    )
    transactions = [arena.allocate(32) for _ in thds]
    locks = [arena.allocate(_LOCK_BYTES + 64) for _ in thds]
    for place, (thd, transaction, lock) in enumerate(zip(thds, transactions, locks, strict=True)):
        arena.put(thd + _ROWS["data"], transaction)
        waits = _WAITING if place else 0
        following = locks[place + 1] if place + 1 < len(locks) else 0
        arena.put(transaction, 0, thd, lock if place else 0, transactions[0] if place else 0)
        arena.put(lock, transaction, 0, 0, _X | _RECORD | waits, following, index, 7, 3, 128, 1 << 2)
    if kind & QUEUES:
        system, table, cell = arena.allocate(8), arena.allocate(16), arena.allocate(8)
        arena.put(BASE + _SYSTEM, system)
        arena.put(system, table)
        arena.put(table, 1, cell)
        arena.put(cell, locks[0])


def _metadata_locks(arena: _Arena, kind: int, thds: Sequence[int]) -> None:
    lock = arena.text(b"\x0c\0\0\0\x02shop\0orders".ljust(416, b"\0"))
    tickets = [arena.allocate(48) for _ in thds]
    shared, exclusive = 3, 10
    arena.put(BASE + _OBJECTS, *([0xFFFF_FFFF_FFFF_FFFF] * 3))
    arena.put(lock + _METADATA["strategy"], BASE + _OBJECTS)
    is_ring = TICKETS[kind // TICKETS_UNIT % len(TICKETS)] == "ring"
    head = lock + _METADATA["first"]
    arena.put(head, tickets[0] + _METADATA["next"] if is_ring else tickets[0])
    for place, (thd, ticket) in enumerate(zip(thds, tickets, strict=True)):
        context = thd + _METADATA["context"]
        arena.put(ticket, BASE + _TICKET_TABLE + VTABLE, head if is_ring else 0, lock, context)
        arena.put(ticket + _METADATA["type"], exclusive if place else shared)
        arena.put(thd + _METADATA["owner"], thd)
        arena.put(thd + (_METADATA["waiting_for"] if place else _LISTS[1]), ticket)
