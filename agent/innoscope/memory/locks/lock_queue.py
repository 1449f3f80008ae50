"""Find the lock that a waiting record lock is waiting for, in the lock's queue (MySQL 5.5 to 5.7).

The locks of a page are in one cell of a hash table, in the order of their requests. A lock waits for the
first one before it that is on the same record and conflicts with it (lock_rec_has_to_wait_in_queue,
lock0lock.cc in 5.6).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from innoscope.memory.locks.layout import LayoutPart, ProcessMemory

#: Maximum number of locks read in all queues of a snapshot.
_MOST: Final = 200
#: Bytes of a bitmap that are read together with its lock.
_USUAL_BYTES: Final = 64
#: Maximum size of a bitmap, in bytes, which is more than the records of any page need.
_BITMAP_BYTES: Final = 1_024
_WORD: Final = (1 << 64) - 1
#: Constants of ut_fold_ulint_pair and ut_hash_ulint (ut0rnd.ic, ut0rnd.h).
_MASK, _MASK2 = 1_463_735_687, 1_653_893_711
#: Bits of type_mode: LOCK_MODE_MASK, LOCK_S, LOCK_REC, LOCK_GAP, LOCK_REC_NOT_GAP and LOCK_INSERT_INTENTION
#: (lock0types.h, lock0lock.h in 5.6).
_MODE, _SHARED, _RECORD, _GAP, _NOT_GAP, _INSERT = 0xF, 2, 0x20, 0x200, 0x400, 0x800
#: Bit of the supremum record in the bitmap (PAGE_HEAP_NO_SUPREMUM, page0page.h).
_SUPREMUM: Final = 1


class Lock(NamedTuple):
    """A record lock. ``bits`` is a bitmap with one bit per record on ``page``: (space id, page number)."""

    transaction: int
    mode: int
    next: int
    page: tuple[int, int]
    bits: int


def read(memory: ProcessMemory, part: LayoutPart, addresses: Sequence[int]) -> dict[int, Lock]:
    """Return the record locks at these addresses; omit other locks and unmapped addresses."""
    size = part.size("lock_bytes")
    raw = memory.many([(address, size + _USUAL_BYTES) for address in addresses])
    found = {}
    for address, content in zip(addresses, raw, strict=True):
        if content is None or part.number(content, "bits") > 8 * _USUAL_BYTES:
            content = _read_all(memory, part, address)
        if content is not None and part.number(content, "mode") & _RECORD:
            bitmap = content[size : size + part.number(content, "bits") // 8]
            found[address] = Lock(
                part.number(content, "transaction"),
                part.number(content, "mode"),
                part.number(content, "next"),
                (part.number(content, "space"), part.number(content, "page")),
                int.from_bytes(bitmap, "little"),
            )
    return found


def _read_all(memory: ProcessMemory, part: LayoutPart, address: int) -> bytes | None:
    """Return a lock with its whole bitmap; None if either is not mapped or the bitmap is too large."""
    size = part.size("lock_bytes")
    [content] = memory.many([(address, size)])
    if content is None or part.number(content, "bits") > 8 * _BITMAP_BYTES:
        return None
    [bitmap] = memory.many([(address + size, part.number(content, "bits") // 8)])
    return content + bitmap if bitmap is not None else None


def blockers(memory: ProcessMemory, part: LayoutPart, waiting: Mapping[int, Lock]) -> dict[int, int]:
    """Return the transaction that each waiting lock is waiting for. Locks without a result are omitted."""
    queues = _Queues(memory, part)
    found = {}
    for address, lock in waiting.items():
        if lock.bits.bit_count() == 1:  # otherwise it is not a waiting lock
            blocker = queues.blocker(address, lock)
            if blocker is not None:
                found[address] = blocker.transaction
    return found


def has_to_wait(lock: Lock, other: Lock) -> bool:
    """Return whether a lock has to wait for another lock on the same record (lock_rec_has_to_wait)."""
    if lock.transaction == other.transaction or lock.mode & _MODE == other.mode & _MODE == _SHARED:
        return False
    inserts = lock.mode & _INSERT
    if not inserts and (lock.bits == 1 << _SUPREMUM or (lock.mode | other.mode) & _GAP):
        return False
    return not (lock.mode & _GAP and other.mode & _NOT_GAP) and not other.mode & _INSERT


class _Queues:
    """The lock queues of one snapshot. Each lock is read only once."""

    def __init__(self, memory: ProcessMemory, part: LayoutPart) -> None:
        self._memory, self._part = memory, part
        self._known: dict[int, Lock | None] = {}
        self._firsts: dict[tuple[int, int], int] = {}
        table = memory.number(memory.number(part.roots["system"]) + part.offset("table"))
        self._cells = memory.number(table + part.offset("count"))
        self._array = memory.number(table + part.offset("array"))

    def blocker(self, address: int, lock: Lock) -> Lock | None:
        """Return the first lock in the queue before ``address`` that blocks ``lock``."""
        following, passed = self._first(lock.page), 0
        while following not in (0, address) and passed < _MOST:
            other = self._lock(following)
            if other is None:
                return None
            if other.page == lock.page and other.bits & lock.bits and has_to_wait(lock, other):
                return other
            following, passed = other.next, passed + 1
        return None

    def _lock(self, address: int) -> Lock | None:
        if address not in self._known:
            if len(self._known) >= _MOST:
                return None
            self._known[address] = read(self._memory, self._part, [address]).get(address)
        return self._known[address]

    def _first(self, page: tuple[int, int]) -> int:
        """Return the address of the first lock in the cell of a page (lock_rec_fold, hash_calc_hash)."""
        if page not in self._firsts:
            space, number = page
            fold = (((((space ^ number ^ _MASK2) << 8) + space) ^ _MASK) + number) & _WORD
            cell = (fold ^ _MASK2) % self._cells if self._cells else 0
            self._firsts[page] = self._memory.number(self._array + 8 * cell) if self._cells else 0
        return self._firsts[page]
