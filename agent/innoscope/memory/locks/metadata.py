"""Find the owners of metadata locks (MDL_ticket and MDL_lock) in the server's memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from innoscope.memory.locks.futexes import Wait

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from innoscope.memory.locks.layout import LockLayout, Part, ProcessMemory
    from innoscope.memory.locks.sessions import Session

KIND: Final = "metadata lock"
#: Kinds of locks whose names are shown. A user lock's name is hidden, because it is a literal in a statement.
_NAMED: Final = frozenset({"schema", "table"})
#: Limits on the granted tickets read of one lock, and on the bytes of a key.
_TICKETS: Final = 2_000
_KEY_BYTES: Final = 392
#: Offset in a vtable symbol of the address that objects store, after offset-to-top and the RTTI pointer.
_FUNCTIONS: Final = 16


def waits(memory: ProcessMemory, layout: LockLayout, sessions: list[Session]) -> list[Wait]:
    """Return a Wait for each thread that waits for a metadata lock.

    The owners in a Wait are the threads that hold the lock, except threads that also wait for it.
    """
    part = layout.metadata
    if part is None:
        return []
    by_address = {session.address: session for session in sessions}
    pending = _pending(memory, layout, part, sessions)
    locks = sorted(set(pending.values()))
    found = []
    for lock in locks:
        waiting = {session.thread for session, wanted in pending.items() if wanted == lock}
        holders = {
            by_address[address].thread
            for address in _holders(memory, part, lock)
            if address in by_address and by_address[address].thread not in waiting
        }
        name = _name(memory, part, lock)
        found += [Wait(thread, KIND, lock, tuple(sorted(holders)), name) for thread in sorted(waiting)]
    return found


def _pending(
    memory: ProcessMemory, layout: LockLayout, part: Part, sessions: list[Session]
) -> dict[Session, int]:
    """Return ``{connection: address of the metadata lock}`` for the connections that wait for one."""
    offset = part.offset("waiting_for")
    tickets = memory.numbers([session.address + offset for session in sessions])
    wanted = [(session, ticket) for session, ticket in zip(sessions, tickets, strict=True) if ticket]
    if layout.tickets is not None:  # skip waits for table flushes: they are objects of another class
        kinds = memory.numbers([ticket for _, ticket in wanted])
        wanted = [one for one, kind in zip(wanted, kinds, strict=True) if kind == layout.tickets + _FUNCTIONS]
    locks = memory.numbers([ticket + part.offset("lock") for _, ticket in wanted])
    return {session: lock for (session, _), lock in zip(wanted, locks, strict=True) if lock}


def _holders(memory: ProcessMemory, part: Part, lock: int) -> list[int]:
    """Return the addresses of the THDs that hold the lock."""
    tickets = list(_WALKS[part.options["tickets"]](memory, part, lock + part.offset("first")))
    contexts = memory.numbers([ticket + part.offset("holder") for ticket in tickets])
    return [context - part.offset("context") for context in contexts]


def _linked(memory: ProcessMemory, part: Part, head: int) -> Iterator[int]:
    ticket, passed = memory.number(head), 0
    while ticket and passed < _TICKETS:
        yield ticket
        ticket, passed = memory.number(ticket + part.offset("next")), passed + 1


def _ring(memory: ProcessMemory, part: Part, head: int) -> Iterator[int]:
    """Yield the addresses of the tickets in a circular list, whose nodes are members of the tickets."""
    node, passed = memory.number(head), 0
    while node and node != head and passed < _TICKETS:
        yield node - part.offset("next")
        node, passed = memory.number(node), passed + 1


_WALKS: Final[dict[str, Callable[[ProcessMemory, Part, int], Iterator[int]]]] = {
    "linked": _linked,
    "ring": _ring,
}


def _name(memory: ProcessMemory, part: Part, lock: int) -> str:
    """Return a description such as ``the metadata lock of table db.t``.

    The lock's key consists of the namespace number and the names, each with a final NUL.
    """
    [raw] = memory.many([(lock + part.offset("key"), _KEY_BYTES)])
    if raw is None:
        return KIND
    kinds = part.options["namespaces"]
    start, length = part.offset("names") - part.offset("key"), int.from_bytes(raw[:2], "little")
    kind = kinds[raw[start]] if raw[start] < len(kinds) else "object"
    if kind == "user":
        return "a user lock"
    if kind not in _NAMED:
        return f"the {kind} {KIND}"
    names = [name.decode(errors="replace") for name in raw[start + 1 : start + length].split(b"\0") if name]
    return f"the {KIND} of {kind} {'.'.join(names)}"
