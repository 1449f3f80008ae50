"""Who holds the metadata locks that others wait for, out of the server's memory: MDL_ticket and MDL_lock."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from innoscope.memory.locks.futexes import Wait

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from innoscope.memory.locks.layout import Anatomy, Memory, Part
    from innoscope.memory.locks.sessions import Session

KIND: Final = "metadata lock"
#: Kinds whose names are shown; a user lock's is a literal of a statement.
_NAMED: Final = frozenset({"schema", "table"})
#: Granted tickets of one lock that are gone through, and bytes of a key.
_TICKETS: Final = 2_000
_KEY_BYTES: Final = 392
#: Behind the pointers to the base class's and the type's descriptions, a table of virtual functions begins.
_FUNCTIONS: Final = 16


def waits(memory: Memory, anatomy: Anatomy, sessions: list[Session]) -> list[Wait]:
    """The connections that wait for a metadata lock, and who was granted it and does not wait for it."""
    part = anatomy.metadata
    if part is None:
        return []
    by_address = {session.address: session for session in sessions}
    pending = _pending(memory, anatomy, part, sessions)
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


def _pending(memory: Memory, anatomy: Anatomy, part: Part, sessions: list[Session]) -> dict[Session, int]:
    """The lock that each connection waits for."""
    offset = part.offset("waiting_for")
    tickets = memory.numbers([session.address + offset for session in sessions])
    wanted = [(session, ticket) for session, ticket in zip(sessions, tickets, strict=True) if ticket]
    if anatomy.tickets is not None:  # else it may wait for tables to be closed, which is another class
        kinds = memory.numbers([ticket for _, ticket in wanted])
        wanted = [
            one for one, kind in zip(wanted, kinds, strict=True) if kind == anatomy.tickets + _FUNCTIONS
        ]
    locks = memory.numbers([ticket + part.offset("lock") for _, ticket in wanted])
    return {session: lock for (session, _), lock in zip(wanted, locks, strict=True) if lock}


def _holders(memory: Memory, part: Part, lock: int) -> list[int]:
    """The addresses of the THDs that were granted it."""
    tickets = list(_WALKS[part.words["tickets"]](memory, part, lock + part.offset("first")))
    contexts = memory.numbers([ticket + part.offset("holder") for ticket in tickets])
    return [context - part.offset("context") for context in contexts]


def _linked(memory: Memory, part: Part, head: int) -> Iterator[int]:
    ticket, passed = memory.number(head), 0
    while ticket and passed < _TICKETS:
        yield ticket
        ticket, passed = memory.number(ticket + part.offset("next")), passed + 1


def _ring(memory: Memory, part: Part, head: int) -> Iterator[int]:
    """Nodes lie inside the tickets; the last one leads back to the head."""
    node, passed = memory.number(head), 0
    while node and node != head and passed < _TICKETS:
        yield node - part.offset("next")
        node, passed = memory.number(node), passed + 1


_WALKS: Final[dict[str, Callable[[Memory, Part, int], Iterator[int]]]] = {"linked": _linked, "ring": _ring}


def _name(memory: Memory, part: Part, lock: int) -> str:
    """``the metadata lock of table db.t``, by its key: lengths, the namespace's number, names."""
    [raw] = memory.many([(lock + part.offset("key"), _KEY_BYTES)])
    if raw is None:
        return KIND
    kinds = part.words["namespaces"]
    start, length = part.offset("names") - part.offset("key"), int.from_bytes(raw[:2], "little")
    kind = kinds[raw[start]] if raw[start] < len(kinds) else "object"
    if kind == "user":
        return "a user lock"
    if kind not in _NAMED:
        return f"the {kind} {KIND}"
    names = [name.decode(errors="replace") for name in raw[start + 1 : start + length].split(b"\0") if name]
    return f"the {KIND} of {kind} {'.'.join(names)}"
