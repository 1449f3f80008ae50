"""Find the connection that blocks each connection waiting for one of InnoDB's locks.

MySQL 8.0.18 and newer, and MariaDB 10.6 and newer, store the blocking transaction in the waiting one
(``trx_lock_t::blocking_trx`` and ``wait_trx`` in trx0trx.h). On older servers, ``lock_queue`` reads the queue
of the lock. The server changes these objects while they are read. Therefore a blocker is used only if the
objects refer to each other, and if the waiting transaction is still waiting for the same lock and transaction
afterwards.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from innoscope.memory.locks import lock_queue
from innoscope.memory.locks.file_names import decoded

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from innoscope.memory.locks.layout import LayoutPart, ProcessMemory

#: Maximum index of a storage engine: MAX_HA - 1 (handler.h). Since 8.0, a THD itself has room for the data of
#: only 15 engines (PREALLOC_NUM_HA).
_MAX_SLOT: Final = 63
#: Bits of type_mode (lock0lock.h, lock0types.h): LOCK_WAIT, and LOCK_TABLE in MySQL and in MariaDB 10.6.
_WAITING: Final = 0x100
_TABLE: Final = 0x18
_NAME_BYTES: Final = 200
_PAGE: Final = 4_096


class RowWait(NamedTuple):
    """The THD of the connection that blocks another connection, and the name of the lock; None if unknown."""

    blocker: int | None
    name: str | None


class _Pointers(NamedTuple):
    """The lock and, if the server stores it, the transaction that a transaction is waiting for."""

    lock: int
    blocker: int


class _Kept(NamedTuple):
    """Cached facts about a waiting connection, valid until its thread runs.

    ``runs`` is its run count, ``request`` the lock if its queue has to be read.
    """

    runs: int
    transaction: int
    lock: int
    name: str | None
    request: lock_queue.Lock | None


class RowWaits:
    """Reads which connection blocks each waiter, in a series of snapshots. Not thread-safe."""

    def __init__(self, memory: ProcessMemory, part: LayoutPart) -> None:
        self._memory, self._part = memory, part
        self._stored = "blocker" in part.members
        self._kept: dict[int, _Kept] = {}

    def read(self, counts: Mapping[int, int], *, partial: bool = False) -> dict[int, RowWait]:
        """Return, for each connection that is waiting for a row lock, the lock and the blocking connection.

        ``counts`` contains the run count of the thread of each connection. Unless ``partial`` is set, the
        cached facts about other connections are dropped.
        """
        others = {thd: one for thd, one in self._kept.items() if thd not in counts} if partial else {}
        kept = {thd: one for thd, one in self._kept.items() if counts.get(thd) == one.runs}
        transactions = {thd: one.transaction for thd, one in kept.items()}
        transactions |= self._transactions([thd for thd in counts if thd not in kept])
        before = self._pointers(transactions)
        changed = {
            thd: transactions[thd]
            for thd, one in before.items()
            if one.lock and (thd not in kept or kept[thd].lock != one.lock)
        }
        kept = {thd: one for thd, one in kept.items() if one.lock == before[thd].lock}
        kept |= self._learn(changed, before, counts)
        blockers = self._blockers(kept, before)
        connections = self._connections({one for one in blockers.values() if one})
        after = self._pointers({thd: one.transaction for thd, one in kept.items()})
        steady = {thd: one for thd, one in kept.items() if after[thd] == before[thd]}
        self._kept = others | steady
        return {
            thd: RowWait(blocker if (blocker := connections.get(blockers[thd])) != thd else None, one.name)
            for thd, one in steady.items()
        }

    def _transactions(self, thds: Sequence[int]) -> dict[int, int]:
        """Return the address of the transaction of each connection that has one."""
        if not thds:
            return {}
        part, memory = self._part, self._memory
        handlerton = memory.number(part.roots["handlerton"])
        slot = memory.number(handlerton + part.offset("slot"), part.size("slot"))
        if not handlerton or slot > _MAX_SLOT:
            return {}
        offset = part.offset("data") + slot * part.size("data_bytes")
        found = memory.numbers([thd + offset for thd in thds])
        if "session" in part.members:
            found = memory.numbers([one + part.offset("session") if one else 0 for one in found])
        return {thd: transaction for thd, transaction in zip(thds, found, strict=True) if transaction}

    def _pointers(self, transactions: Mapping[int, int]) -> dict[int, _Pointers]:
        """Read the pointers of each transaction to its lock and its blocker; return them by connection.

        One read covers both, because they are close together in the structure.
        """
        lock = self._part.offset("waiting_for")
        blocker = self._part.offset("blocker") if self._stored else lock
        first = min(lock, blocker)
        size = max(lock, blocker) + 8 - first
        read = self._memory.many([(one + first, size) for one in transactions.values()])
        numbers = [(int.from_bytes(raw or b"", "little")) for raw in read]
        mask = (1 << 64) - 1
        shift_lock, shift_blocker = 8 * (lock - first), 8 * (blocker - first)
        return {
            thd: _Pointers(one >> shift_lock & mask, one >> shift_blocker & mask if self._stored else 0)
            for thd, one in zip(transactions, numbers, strict=True)
        }

    def _learn(
        self, transactions: Mapping[int, int], pointers: Mapping[int, _Pointers], counts: Mapping[int, int]
    ) -> dict[int, _Kept]:
        """Return the facts that do not change during a wait. Locks of other transactions are omitted."""
        if not transactions:
            return {}
        part = self._part
        locks = [pointers[thd].lock for thd in transactions]
        own = self._memory.numbers([one + part.offset("thread") for one in transactions.values()])
        size = max(part.offset(name) + part.size(name) for name in ("transaction", "mode", "index"))
        raw = self._memory.many([(lock, size) for lock in locks])
        requests = {} if self._stored else lock_queue.read(self._memory, part, locks)
        names: dict[int, str | None] = {0: None}
        found = {}
        rows = zip(transactions.items(), locks, own, raw, strict=True)
        for (thd, transaction), lock, thread, content in rows:
            if content is None or thread != thd or part.number(content, "transaction") != transaction:
                continue
            mode = part.number(content, "mode")
            if mode & _WAITING:
                index = 0 if mode & _TABLE else part.number(content, "index")
                if index not in names:
                    names[index] = self._described(index)
                found[thd] = _Kept(counts[thd], transaction, lock, names[index], requests.get(lock))
        return found

    def _blockers(self, kept: Mapping[int, _Kept], pointers: Mapping[int, _Pointers]) -> dict[int, int]:
        """Return the transaction that blocks each connection; 0 if the transaction is unknown."""
        if self._stored:
            return {thd: pointers[thd].blocker for thd in kept}
        requests = {one.lock: one.request for one in kept.values() if one.request is not None}
        found = lock_queue.blockers(self._memory, self._part, requests)
        return {thd: found.get(one.lock, 0) for thd, one in kept.items()}

    def _connections(self, transactions: set[int]) -> dict[int, int]:
        """Return the connection of each transaction. Transactions without one are omitted."""
        addresses = list(transactions)
        thds = self._memory.numbers([one + self._part.offset("thread") for one in addresses])
        own = self._transactions([thd for thd in thds if thd])
        return {one: thd for one, thd in zip(addresses, thds, strict=True) if own.get(thd) == one}

    def _described(self, index: int) -> str | None:
        """Return a description such as ``index db.t.PRIMARY``."""
        table, name = (self._text(index, member) for member in ("table_name", "index_name"))
        database, slash, table = table.partition("/")
        return f"index {decoded(database)}.{decoded(table)}.{name}" if slash and name else None

    def _text(self, address: int, member: str) -> str:
        for offset in self._part.members[member].offsets:
            address = self._memory.number(address + offset)
        # The page after the end of the name may not be mapped.
        size = min(_NAME_BYTES, _PAGE - address % _PAGE)
        first, second = self._memory.many([(address, size), (address + size, _NAME_BYTES - size)])
        text = ((first or b"") + (second or b"")).partition(b"\0")[0].decode(errors="replace")
        return text if text.isprintable() else ""
