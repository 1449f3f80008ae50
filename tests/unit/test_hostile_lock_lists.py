"""A hostile server's lists of locks and tickets are read within limits."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from innoscope.memory.locks import metadata, sessions
from innoscope.memory.locks.layout import LockLayout
from unit.fake_memory import MDL, VTABLE, FakeMemory, part

WAITERS = 200
MOST_READ = 200_000


class CountingMemory(FakeMemory):
    """Fake memory that counts the ranges that are read."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def many(self, places: Any) -> list[bytes | None]:
        self.counts["ranges"] += len(places)
        return super().many(places)


@pytest.mark.parametrize("tickets", ["linked", "ring"])
def test_circular_lists_of_tickets_share_one_limit(tickets: str) -> None:
    memory = CountingMemory()
    waiting = [
        sessions.ServerSession(0x1000 * number, number, number, "") for number in range(1, WAITERS + 1)
    ]
    for one in waiting:
        ticket, lock = 0x1000000 + one.address, 0x2000000 + one.address
        memory.put(one.address + MDL["waiting_for"], ticket)
        memory.put(ticket, VTABLE + 16, 0, lock, 0, ticket + (0x20 if tickets == "ring" else 0))
        memory.put(lock + 0x200, ticket + (0x20 if tickets == "ring" else 0))
    options = {"tickets": tickets, "namespaces": ["global", "schema", "table"]}
    mdl = part(options, {}, first=0x200, next=0x20, **MDL)
    found = metadata.waits(memory, LockLayout(metadata=mdl, tickets=VTABLE), waiting)
    assert len(found) == WAITERS
    assert memory.counts["ranges"] < MOST_READ
