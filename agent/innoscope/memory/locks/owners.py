"""Find the owners of the locks that a snapshot's threads are waiting for, by reading the server's memory.

The memory is only read (process_vm_readv). An owner is accepted only if its thread is in the snapshot.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from innoscope import _native
from innoscope.common.errors import InnoscopeError
from innoscope.memory.locks import blocked_rows, futexes, metadata, srw, sync_array
from innoscope.memory.locks import layout as layouts
from innoscope.memory.locks import sessions as sessions_of
from innoscope.memory.locks.blocked_rows import BlockedRow, BlockedRows
from innoscope.memory.locks.held import HeldLock
from innoscope.memory.locks.layout import ProcessMemory
from innoscope.sampling.lock_sections import own_functions

if TYPE_CHECKING:
    from collections.abc import Iterable

    from innoscope.memory.locks.futexes import Wait
    from innoscope.memory.locks.layout import LockLayout
    from innoscope.memory.locks.sessions import ServerSession
    from innoscope.sampling.model import Snapshot, Thread
    from innoscope.target.model import Target

_log = logging.getLogger(__name__)

#: Maximum number of waiters reported per lock.
_MAX_WAITERS: Final = 1_000
#: Maximum number of owners reported per lock.
_MAX_OWNERS: Final = 3
#: Maximum number of locks reported.
_MAX_LOCKS: Final = 20
#: Seconds between the two reads of a lock's owner.
_MOMENT_S: Final = 0.01
#: Wait classes of threads that may be waiting for an InnoDB latch.
_LATCHES: Final = frozenset({"mutex_wait", "spin", "read_ahead", "page_read", "opening_tables", "statistics"})
#: Wait classes of threads that may be waiting for a metadata lock.
_METADATA: Final = frozenset({"metadata_lock", "opening_tables", "user_lock"})


@dataclass(slots=True)
class _Lock:
    """A lock's owners and its waiters' wait classes in all snapshots, and the snapshot with the most waiters.

    A snapshot in which the owner is unknown is used only if the owner is unknown in all snapshots.
    """

    kind: str
    name: str
    snapshots: int = 0
    waited: int = 0
    owners: Counter[int] = field(default_factory=Counter)
    classes: Counter[str] = field(default_factory=Counter)
    waiters: tuple[int, ...] = ()
    best: dict[int, Thread] = field(default_factory=dict)
    taker: str = ""


class LockOwners:
    """Collects one server's lock owners. A background thread reads the lock layout.

    Call ``note`` immediately after each snapshot. Not thread-safe.
    """

    def __init__(self, target: Target) -> None:
        self._target = target
        self._memory = ProcessMemory(target.pid)
        self._locks: dict[int, _Lock] = {}
        self._rows = BlockedRows(self._memory)
        self._sessions: tuple[ServerSession, ...] = ()
        self._most = 0
        self._layout: LockLayout | None = None
        self._unread = False
        self._learner = threading.Thread(target=self._learn, name="lock layout", daemon=True)
        self._learner.start()

    @property
    def pending(self) -> bool:
        """Return whether threads in the last snapshot waited for locks whose layout was not known yet."""
        return self._unread

    def note(self, snapshot: Snapshot) -> None:
        """Record the waiters and owners for this snapshot. Do not raise if the memory is not accessible."""
        by_tid = {thread.ns_tid: thread for thread in snapshot.threads}
        found: dict[int, list[Wait]] = {}
        threads, seen = set(by_tid), {thread.wait for thread in snapshot.threads}
        self._unread = self._learner.is_alive() and bool(seen & (_LATCHES | _METADATA | {blocked_rows.WAIT}))
        try:
            waits = self._waits(snapshot, by_tid, seen)
            steady = self._steady(snapshot, threads, seen, waits)
        except (OSError, _native.NativeError):  # the server's memory is not accessible, or the server exits
            return
        for wait in waits:
            found.setdefault(wait.address, []).append(wait)
        for address, waits in found.items():
            self._add(address, waits, by_tid, steady.get(address, frozenset()))

    def held_locks(self) -> tuple[HeldLock, ...]:
        """Return a record for each lock and owner, locks with the most waiting threads first."""
        locks = sorted(self._locks.items(), key=lambda item: -item[1].waited)[:_MAX_LOCKS]
        unnamed = [address for address, lock in locks if not lock.name]
        names = _names(self._target.pid, unnamed) if unnamed else {}
        return tuple(
            held
            for address, lock in locks
            for held in _held(address, lock, lock.name or names.get(address) or _described(lock))
        )

    @property
    def blocked_rows(self) -> tuple[BlockedRow, ...]:
        """Return the waits for row locks in the snapshot in which the most threads waited for them."""
        return self._rows.waits

    @property
    def sessions(self) -> tuple[ServerSession, ...]:
        """Return the connections as of the snapshot with the most lock waits."""
        return self._sessions

    def _latched(self, snapshot: Snapshot, threads: set[int], seen: set[str]) -> list[Wait]:
        """Return the waits for short-term locks: C library locks and InnoDB latches."""
        found = futexes.waits(snapshot.threads, self._memory.many)
        if self._target.flavour == "mariadb":
            found += srw.waits(self._memory, snapshot.threads, threads)
        if self._layout is not None and self._layout.latches is not None and seen & _LATCHES:
            # A thread that waits for a row neither waits for a latch nor holds one (lock_wait_suspend_thread,
            # lock0wait.cc). A sync array that shows otherwise was read later than the stack: the thread has
            # run since.
            rows = {thread.ns_tid for thread in snapshot.threads if thread.wait == blocked_rows.WAIT}
            found += sync_array.waits(self._memory, self._layout.latches, threads - rows)
        return found

    def _steady(
        self, snapshot: Snapshot, threads: set[int], seen: set[str], waits: list[Wait]
    ) -> dict[int, frozenset[int]]:
        """Read the owners again after a pause. Return ``{address of the lock: owners}``.

        If a thread owns a lock in both reads, its stack in the snapshot shows why it holds the lock.
        """
        if not any(wait.owners for wait in waits if wait.kind != metadata.KIND):
            return {}
        time.sleep(_MOMENT_S)
        again = self._latched(snapshot, threads, seen)
        return {wait.address: frozenset(wait.owners) for wait in again}

    def _waits(self, snapshot: Snapshot, by_tid: dict[int, Thread], seen: set[str]) -> list[Wait]:
        """Return the waits for latches and metadata locks, and record those for row locks."""
        threads = set(by_tid)
        found = self._latched(snapshot, threads, seen)
        layout = self._layout
        if layout is None or layout.sessions is None:
            return found
        rows = sum(thread.wait == blocked_rows.WAIT for thread in by_tid.values()) if layout.rows else 0
        if found or rows or seen & _METADATA or not self._sessions:
            sessions = sessions_of.read(self._memory, layout.sessions, threads)
            if seen & _METADATA:
                found += metadata.waits(self._memory, layout, sessions)
            if len(found) + rows >= self._most:
                self._most, self._sessions = len(found) + rows, tuple(sessions)
            if layout.rows is not None and rows:
                self._rows.note(layout.rows, sessions, by_tid)
        return found

    def _learn(self) -> None:
        """Read the lock layout from debug information or the catalog.

        For a large build, this takes one or two seconds. Until then, only locks that need no layout are
        examined.
        """
        try:
            self._layout = layouts.learn(self._target)
        except InnoscopeError:  # the server exited, or its memory is not readable
            pass
        except BaseException as error:  # includes panics of the Rust core
            _log.error("cannot read the layout of locks: unexpected %s", type(error).__name__)

    def _add(
        self, address: int, waits: list[Wait], by_tid: dict[int, Thread], steady: frozenset[int]
    ) -> None:
        first = waits[0]
        lock = self._locks.setdefault(address, _Lock(first.kind, first.name))
        lock.snapshots += 1
        lock.waited += len(waits)
        waiting = {wait.waiter for wait in waits}
        taker = _locking_function(waits, by_tid)
        # If a thread acquired the lock after the snapshot, its stack does not show why it holds the lock.
        # Therefore such a thread is omitted.
        owners = {
            owner: by_tid[owner]
            for owner in first.owners
            if owner in by_tid
            and owner not in waiting
            and (first.kind == metadata.KIND or owner in steady or taker in _labels(by_tid[owner]))
        }
        lock.owners.update(set(first.owners) & by_tid.keys())
        lock.classes.update(by_tid[wait.waiter].wait for wait in waits)
        if (bool(owners), len(waits)) >= (bool(lock.best), len(lock.waiters)):
            lock.waiters, lock.best, lock.taker = tuple(sorted(waiting)), owners, taker


def _held(address: int, lock: _Lock, name: str) -> Iterable[HeldLock]:
    known: list[tuple[int | None, Thread | None]] = [*lock.best.items()]
    # In a single snapshot, a waiter may be running: a thread that requests an exclusive metadata lock wakes
    # up every second to notify the holders (MDL_context::acquire_lock, mdl.cc in MySQL 5.6 to 8.0).
    wait = lock.classes.most_common(1)[0][0]
    for tid, thread in known[:_MAX_OWNERS] or [(None, None)]:
        yield HeldLock(
            kind=lock.kind,
            name=name,
            address=address,
            owner=tid,
            waiters=lock.waiters[:_MAX_WAITERS],
            waiting=len(lock.waiters),
            wait=wait,
            snapshots=lock.snapshots,
            owners=len(lock.owners),
            owner_wait=thread.wait if thread is not None else "",
            stack=_labels(thread) if thread is not None else (),
        )


def _names(pid: int, addresses: list[int]) -> dict[int, str]:
    """Return ``{address: name}``. A name is ``LOCK_open``, or ``log_sys+0x40`` inside a structure.

    Addresses without a name are omitted.
    """
    try:
        found = _native.CodeFile(pid).variables_at(addresses)
    except (OSError, _native.NativeError):  # the server has just exited: locks stay unnamed
        return {}
    covered = [(address, one) for address, one in zip(addresses, found, strict=True) if one is not None]
    names = _native.demangle([one.symbol for _, one in covered])
    return {
        address: name if address == one.address else f"{name}+0x{address - one.address:x}"
        for name, (address, one) in zip(names, covered, strict=True)
    }


def _labels(thread: Thread) -> tuple[str, ...]:
    return tuple([frame.label for frame in thread.frames])


def _locking_function(waits: list[Wait], by_tid: dict[int, Thread]) -> str:
    """Return the server's function that most often requests the lock; "" if no function has a name."""
    functions: Counter[str] = Counter()
    for wait in waits:
        functions.update(own_functions(_labels(by_tid[wait.waiter]))[:1])
    return functions.most_common(1)[0][0] if functions else ""


def _described(lock: _Lock) -> str:
    """Return a description such as ``a mutex that open_table takes``, for a lock without a name."""
    one = f"an {lock.kind}" if lock.kind[0] in "IAEO" else f"a {lock.kind}"
    return f"{one} that {lock.taker} takes" if lock.taker else one
