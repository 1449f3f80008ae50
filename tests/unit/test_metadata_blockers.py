"""The holder of a metadata lock is verified even in snapshots that reuse the last read of the waiters."""

from __future__ import annotations

from innoscope.memory.locks.blockers import Blockers, Waiter
from innoscope.memory.locks.layout import LockLayout
from innoscope.sampling.model import Blocked
from unit.fake_memory import MDL, THD, VTABLE, FakeMemory, part, thd
from unit.test_row_locks_in_memory import Clock

FIRST, SECOND, WAITING, SENTINEL = 0x10000, 0x20000, 0x30000, 0x40000
LOCK, NAME = 0x6000, "table d.t"
TICKETS = {FIRST: 0x5000, SECOND: 0x5100, WAITING: 0x5200}
THREADS = {71, 72, 73}
WAITER = Waiter(73, "metadata_lock", WAITING, 3, 1)


class Server(FakeMemory):
    """A server in which connections 1 and 2 hold a lock, for which 3 is waiting."""

    def __init__(self) -> None:
        super().__init__()
        self.put(0x100, FIRST)
        for number, (address, following) in enumerate(
            ((FIRST, SECOND), (SECOND, WAITING), (WAITING, SENTINEL)), 1
        ):
            thd(self, address, following, 70 + number, number)
            self.put(address + MDL["waiting_for"], TICKETS[WAITING] if address == WAITING else 0)
            self.put(TICKETS[address], VTABLE + 16, 0, LOCK, address + MDL["context"], 0)
        self.put(SENTINEL, 0, 0)
        self.put_bytes(LOCK, b"\x05\0\0\0\x02d\0t\0".ljust(0x200, b"\0"))
        self.granted(FIRST, SECOND)

    def granted(self, *holders: int) -> None:
        """Make ``holders`` the connections that hold the lock."""
        tickets = [TICKETS[one] for one in holders]
        for place, following in zip(
            [LOCK + 0x200, *(one + 0x20 for one in tickets)], [*tickets, 0], strict=True
        ):
            self.put(place, following)


def _blockers(memory: Server) -> Blockers:
    options = {"tickets": "linked", "namespaces": ["global", "schema", "table"]}
    return Blockers(
        memory,
        LockLayout(
            sessions=part({"walk": "linked"}, {"first": 0x100}, first=0, **THD),
            metadata=part(options, {}, first=0x200, next=0x20, **MDL),
            tickets=VTABLE,
        ),
        Clock(step_s=0.0055),  # a read with a search takes three steps
    )


def test_holder_that_released_the_lock_is_not_named_until_the_next_read() -> None:
    memory = Server()
    blockers = _blockers(memory)
    assert blockers.find([WAITER], THREADS) == {73: Blocked(1, NAME, 71)}
    memory.granted(SECOND)
    assert blockers.find([WAITER], THREADS) == {}, "connection 1 does not hold the lock any longer"
    found = [blockers.find([WAITER], THREADS) for _ in range(8)]
    assert found[-1] == {73: Blocked(2, NAME, 72)}, "after the next read"
    assert {73: Blocked(1, NAME, 71)} not in found


def test_holder_that_still_holds_the_lock_is_kept() -> None:
    memory = Server()
    blockers = _blockers(memory)
    for _ in range(4):
        assert blockers.find([WAITER], THREADS) == {73: Blocked(1, NAME, 71)}


def test_holder_whose_connection_ended_is_not_kept() -> None:
    memory = Server()
    blockers = _blockers(memory)
    assert blockers.find([WAITER], THREADS) == {73: Blocked(1, NAME, 71)}
    memory.put(FIRST + THD["connection"], 9)
    assert blockers.find([WAITER], THREADS) == {}
