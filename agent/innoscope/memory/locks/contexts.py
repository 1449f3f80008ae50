"""Find the holders of metadata locks in each connection's lists of granted tickets (MDL_context).

The list in the lock itself is incomplete since 5.7: for statements that read or write a table, the lock may
store only the number of tickets (``MDL_ticket::m_is_fast_path``, mdl.h in MySQL 5.7 and 8.0).
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from innoscope.memory.locks.layout import VTABLE

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from innoscope.memory.locks.layout import LayoutPart, ProcessMemory
    from innoscope.memory.locks.sessions import ServerSession

#: Maximum number of tickets read in all lists.
_TICKETS: Final = 50_000
#: Number of lock types (MDL_TYPE_END, mdl.h in MySQL 5.7 to 9.7).
_TYPES: Final = 11
#: Size in bytes of a set of lock types (MDL_lock::bitmap_t in mdl.cc).
_SET_BYTES: Final = 2


@dataclass(frozen=True, slots=True)
class Ticket:
    """A ticket: a lock, the type in which it is granted or requested, and the next ticket in the list."""

    lock: int
    type: int
    next: int


def holders(
    memory: ProcessMemory,
    part: LayoutPart,
    tickets: int,
    sessions: list[ServerSession],
    pending: Mapping[ServerSession, int],
    *,
    of_any_type: bool,
) -> dict[int, list[ServerSession]]:
    """Return, for each lock, the connections with a granted ticket that blocks one of the pending tickets.

    ``tickets`` is the address of the vtable of MDL_ticket. If ``of_any_type`` is set, a granted ticket counts
    even if it blocks none of them.
    """
    requested: dict[int, set[int]] = defaultdict(set)
    for _, ticket in _read(memory, part, tickets, pending.items()):
        requested[ticket.lock].add(ticket.type)
    conflicting = {lock: _conflicting(memory, part, lock, types) for lock, types in requested.items()}
    found: dict[int, list[ServerSession]] = defaultdict(list)
    for session, ticket in _granted(memory, part, tickets, sessions):
        if ticket.lock in requested and (of_any_type or ticket.type in conflicting[ticket.lock]):
            found[ticket.lock].append(session)
    return found


def _granted(
    memory: ProcessMemory, part: LayoutPart, tickets: int, sessions: list[ServerSession]
) -> Iterator[tuple[ServerSession, Ticket]]:
    """Yield the tickets of all connections. Each round reads the next ticket of every list."""
    owners = memory.numbers([session.address + part.offset("owner") for session in sessions])
    sound = [one for one, owner in zip(sessions, owners, strict=True) if one.address == owner]
    heads = [(session, session.address + offset) for session in sound for offset in part.options["lists"]]
    firsts = memory.numbers([head for _, head in heads])
    level = [(session, first) for (session, _), first in zip(heads, firsts, strict=True) if first]
    passed = 0
    while level and (passed := passed + len(level)) <= _TICKETS:
        found = list(_read(memory, part, tickets, level))
        yield from found
        level = [(session, ticket.next) for session, ticket in found if ticket.next]


def _read(
    memory: ProcessMemory, part: LayoutPart, tickets: int, places: Iterable[tuple[ServerSession, int]]
) -> Iterator[tuple[ServerSession, Ticket]]:
    """Yield the tickets at the given addresses, except those that do not refer back to the connection."""
    places = list(places)
    size = max(part.offset(name) + part.size(name) for name in ("next", "holder", "lock", "type"))
    contents = memory.many([(address, size) for _, address in places])
    for (session, _), raw in zip(places, contents, strict=True):
        if raw is None or int.from_bytes(raw[:8], "little") != tickets + VTABLE:
            continue
        if part.number(raw, "holder") == session.address + part.offset("context"):
            lock, kind, following = (part.number(raw, name) for name in ("lock", "type", "next"))
            yield session, Ticket(lock, kind, following)


def _conflicting(memory: ProcessMemory, part: LayoutPart, lock: int, requested: set[int]) -> frozenset[int]:
    """Return the types of granted tickets that, by the lock's strategy, block the ``requested`` types.

    MDL_lock_strategy begins with ``m_granted_incompatible``: a set of granted types for each requested type.
    """
    strategy = memory.number(lock + part.offset("strategy"))
    if strategy not in (part.roots["of_objects"], part.roots["of_scopes"]):
        return frozenset()
    addresses = [strategy + _SET_BYTES * kind for kind in requested if kind < _TYPES]
    sets = memory.numbers(addresses, _SET_BYTES)
    return frozenset(kind for kind in range(_TYPES) if any(one >> kind & 1 for one in sets))
