"""Find the owners of metadata locks (MDL_ticket and MDL_lock) in the server's memory."""

from __future__ import annotations

from collections import defaultdict
from itertools import islice
from typing import TYPE_CHECKING, Final

from innoscope.memory.locks import contexts
from innoscope.memory.locks.futexes import Wait
from innoscope.memory.locks.layout import VTABLE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from innoscope.memory.locks.layout import LayoutPart, LockLayout, ProcessMemory
    from innoscope.memory.locks.sessions import ServerSession

KIND: Final = "metadata lock"
#: Kinds of locks whose names are shown. A user lock's name is hidden, because it is a literal in a statement.
_NAMED: Final = frozenset({"schema", "table"})
#: Maximum number of granted tickets read per lock.
_TICKETS: Final = 2_000
#: Maximum number of granted tickets read for all locks together.
_ALL_TICKETS: Final = 50_000
#: Number of bytes read at a lock's key: lengths, and at most 387 bytes of names (MAX_MDLKEY_LENGTH, mdl.h).
_KEY_BYTES: Final = 392


def waits(
    memory: ProcessMemory,
    layout: LockLayout,
    sessions: list[ServerSession],
    holders: list[ServerSession] | None = None,
    *,
    of_any_type: bool = False,
) -> list[Wait]:
    """Return a Wait for each thread of ``sessions`` that is waiting for a metadata lock.

    The owners in a Wait are the threads that hold the lock, except threads that are also waiting for it. Only
    ``holders`` (by default, ``sessions``) are considered as owners. A ticket that does not block any of the
    ``sessions`` counts only if ``of_any_type`` is set, or if the server does not store the tickets' types.
    """
    if holders is None:
        holders = sessions
    part = layout.metadata
    if part is None:
        return []
    pending = _pending(memory, layout, part, sessions)
    locks = _numbers(memory, part, "lock", pending.values())
    waiters: dict[int, set[ServerSession]] = defaultdict(set)
    for session, lock in zip(pending, locks, strict=True):
        if lock:
            waiters[lock].add(session)
    if part.options["tickets"] == "contexts":
        holding = contexts.holders(
            memory, part, layout.tickets or 0, holders, pending, of_any_type=of_any_type
        )
    else:
        holding = _holders(memory, part, waiters, holders)
    still = _pending(memory, layout, part, list(pending))
    found = []
    for lock in sorted(waiters):
        waiting = {session for session in waiters[lock] if still.get(session) == pending[session]}
        owners = {session.thread for session in holding.get(lock, ()) if session not in waiters[lock]}
        name = _name(memory, part, lock)
        threads = sorted(session.thread for session in waiting)
        found += [Wait(thread, KIND, lock, tuple(sorted(owners)), name) for thread in threads]
    return found


def _pending(
    memory: ProcessMemory, layout: LockLayout, part: LayoutPart, sessions: list[ServerSession]
) -> dict[ServerSession, int]:
    """Return ``{connection: address of its ticket}`` for the connections waiting for a metadata lock."""
    offset = part.offset("waiting_for")
    tickets = memory.numbers([session.address + offset for session in sessions])
    wanted = [(session, ticket) for session, ticket in zip(sessions, tickets, strict=True) if ticket]
    if layout.tickets is not None:  # skip waits for table flushes, which are objects of another class
        kinds = memory.numbers([ticket for _, ticket in wanted])
        wanted = [one for one, kind in zip(wanted, kinds, strict=True) if kind == layout.tickets + VTABLE]
    return dict(wanted)


def _holders(
    memory: ProcessMemory, part: LayoutPart, locks: Iterable[int], sessions: list[ServerSession]
) -> dict[int, list[ServerSession]]:
    """Return, for each lock, the connections with a ticket in the lock's list of granted tickets."""
    by_context = {session.address + part.offset("context"): session for session in sessions}
    walk = _WALKS[part.options["tickets"]]
    found = {}
    left = _ALL_TICKETS
    for lock in locks:
        tickets = islice(walk(memory, part, lock + part.offset("first")), left)
        granted = _numbers(memory, part, "holder", tickets)
        left -= len(granted)
        found[lock] = [by_context[context] for context in granted if context in by_context]
    return found


def _numbers(memory: ProcessMemory, part: LayoutPart, name: str, objects: Iterable[int]) -> list[int]:
    return memory.numbers([address + part.offset(name) for address in objects])


def _linked(memory: ProcessMemory, part: LayoutPart, head: int) -> Iterator[int]:
    ticket, passed = memory.number(head), 0
    while ticket and passed < _TICKETS:
        yield ticket
        ticket, passed = memory.number(ticket + part.offset("next")), passed + 1


def _ring(memory: ProcessMemory, part: LayoutPart, head: int) -> Iterator[int]:
    """Yield the addresses of the tickets in a circular list whose nodes are embedded in the tickets."""
    node, passed = memory.number(head), 0
    while node and node != head and passed < _TICKETS:
        yield node - part.offset("next")
        node, passed = memory.number(node), passed + 1


_WALKS: Final[dict[str, Callable[[ProcessMemory, LayoutPart, int], Iterator[int]]]] = {
    "linked": _linked,
    "ring": _ring,
}


def _name(memory: ProcessMemory, part: LayoutPart, lock: int) -> str:
    """Return a description such as ``the metadata lock of table db.t``.

    The lock's key consists of the namespace number and NUL-terminated names.
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
