"""Who holds the locks that threads wait for, look by look, read from the server's memory.

Only reads (process_vm_readv); what is read is believed where it names a thread that the look has seen.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from innoscope import _native
from innoscope.common.errors import InnoscopeError
from innoscope.memory.locks import futexes, metadata, srw, sync_array
from innoscope.memory.locks import layout as anatomies
from innoscope.memory.locks import sessions as sessions_of
from innoscope.memory.locks.held import Held
from innoscope.memory.locks.layout import Memory
from innoscope.sampling.lock_sections import own_functions

if TYPE_CHECKING:
    from collections.abc import Iterable

    from innoscope.memory.locks.futexes import Wait
    from innoscope.memory.locks.layout import Anatomy
    from innoscope.memory.locks.sessions import Session
    from innoscope.sampling.model import Dump, Thread
    from innoscope.target.model import Target

#: Waiters, owners and locks that are kept.
_WAITERS_KEPT: Final = 1_000
_OWNERS_KEPT: Final = 3
_LOCKS_KEPT: Final = 20
#: Seconds between two readings of who holds a lock.
_MOMENT_S: Final = 0.01
#: Wait classes in which InnoDB's latches and metadata locks are waited for.
_LATCHES: Final = frozenset({"mutex_wait", "spin", "read_ahead", "page_read", "opening_tables", "statistics"})
_METADATA: Final = frozenset({"metadata_lock", "opening_tables", "user_lock"})


@dataclass(slots=True)
class _Lock:
    """One lock over all looks: the owners, and the look at which most threads waited for a known one."""

    kind: str
    name: str
    looks: int = 0
    waited: int = 0
    owners: Counter[int] = field(default_factory=Counter)
    waiters: tuple[int, ...] = ()
    best: dict[int, Thread] = field(default_factory=dict)
    taker: str = ""
    wait: str = ""


class Holding:
    """Of one server. Not thread-safe; ``note`` is called with each look, at once after it."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._memory = Memory(target.pid)
        self._locks: dict[int, _Lock] = {}
        self._sessions: tuple[Session, ...] = ()
        self._most = 0
        self._anatomy: Anatomy | None = None
        threading.Thread(target=self._learn, name="anatomy", daemon=True).start()

    def note(self, dump: Dump) -> None:
        """Remember who waits for whom at this look."""
        by_tid = {thread.ns_tid: thread for thread in dump.threads}
        found: dict[int, list[Wait]] = {}
        try:
            waits = self._waits(dump)
            steady = self._steady(dump, waits)
        except (OSError, _native.NativeError):  # no rights to its memory, or it ends: stacks tell the rest
            return
        for wait in waits:
            found.setdefault(wait.address, []).append(wait)
        for address, waits in found.items():
            self._add(address, waits, by_tid, steady.get(address, frozenset()))

    def told(self) -> tuple[Held, ...]:
        """A record for each lock and owner, those for which most waited first."""
        locks = sorted(self._locks.items(), key=lambda item: -item[1].waited)[:_LOCKS_KEPT]
        unnamed = [address for address, lock in locks if not lock.name]
        names = _names(self._target.pid, unnamed) if unnamed else {}
        return tuple(
            held
            for address, lock in locks
            for held in _held(address, lock, lock.name or names.get(address) or _described(lock))
        )

    @property
    def sessions(self) -> tuple[Session, ...]:
        """The connections, as of the look at which most threads waited for each other, else of the last."""
        return self._sessions

    def _latched(self, dump: Dump, threads: set[int], seen: set[str]) -> list[Wait]:
        """Waits for locks that are held for a moment."""
        found = futexes.waits(dump.threads, self._memory.many)
        if self._target.flavour == "mariadb":
            found += srw.waits(self._memory, dump.threads, threads)
        if self._anatomy is not None and self._anatomy.latches is not None and seen & _LATCHES:
            found += sync_array.waits(self._memory, self._anatomy.latches, threads)
        return found

    def _steady(self, dump: Dump, waits: list[Wait]) -> dict[int, frozenset[int]]:
        """The owners a moment later, by lock: of those that are still there, the stack says what they do."""
        if not any(wait.owners for wait in waits if wait.kind != metadata.KIND):
            return {}
        time.sleep(_MOMENT_S)
        again = self._latched(dump, *_of(dump))
        return {wait.address: frozenset(wait.owners) for wait in again}

    def _waits(self, dump: Dump) -> list[Wait]:
        threads, seen = _of(dump)
        found = self._latched(dump, threads, seen)
        anatomy = self._anatomy
        if anatomy is None:
            return found
        if anatomy.sessions is not None and (found or seen & _METADATA or not self._sessions):
            sessions = sessions_of.read(self._memory, anatomy.sessions, threads)
            if seen & _METADATA:
                found += metadata.waits(self._memory, anatomy, sessions)
            if len(found) >= self._most:
                self._most, self._sessions = len(found), tuple(sessions)
        return found

    def _learn(self) -> None:
        """Debug information takes a second or two to read; until then locks of the C library are told."""
        with contextlib.suppress(InnoscopeError):  # it is gone, or its memory is refused: as without names
            self._anatomy = anatomies.learn(self._target)

    def _add(
        self, address: int, waits: list[Wait], by_tid: dict[int, Thread], steady: frozenset[int]
    ) -> None:
        first = waits[0]
        lock = self._locks.setdefault(address, _Lock(first.kind, first.name))
        lock.looks += 1
        lock.waited += len(waits)
        waiting = {wait.waiter for wait in waits}
        taker = _taker(waits, by_tid)
        # One that got the lock since the look was elsewhere then: its stack does not say what for.
        owners = {
            owner: by_tid[owner]
            for owner in first.owners
            if owner in by_tid
            and owner not in waiting
            and (first.kind == metadata.KIND or owner in steady or taker in _labels(by_tid[owner]))
        }
        lock.owners.update(set(first.owners) & by_tid.keys())
        if (bool(owners), len(waits)) >= (bool(lock.best), len(lock.waiters)):
            lock.waiters, lock.best = tuple(sorted(waiting)), owners
            lock.taker, lock.wait = taker, by_tid[first.waiter].wait


def _held(address: int, lock: _Lock, name: str) -> Iterable[Held]:
    known: list[tuple[int | None, Thread | None]] = [*lock.best.items()]
    for tid, thread in known[:_OWNERS_KEPT] or [(None, None)]:
        yield Held(
            kind=lock.kind,
            name=name,
            address=address,
            owner=tid,
            waiters=lock.waiters[:_WAITERS_KEPT],
            waiting=len(lock.waiters),
            wait=lock.wait,
            looks=lock.looks,
            owners=len(lock.owners),
            owner_wait=thread.wait if thread is not None else "",
            stack=_labels(thread) if thread is not None else (),
        )


def _names(pid: int, addresses: list[int]) -> dict[int, str]:
    """``LOCK_open``, ``log_sys+0x40`` inside a structure, by address; none where no variable covers it."""
    try:
        found = _native.CodeFile(pid).variables_at(addresses)
    except (OSError, _native.NativeError):  # it has just ended: locks go without a name
        return {}
    covered = [(address, one) for address, one in zip(addresses, found, strict=True) if one is not None]
    names = _native.demangle([one.symbol for _, one in covered])
    return {
        address: name if address == one.address else f"{name}+0x{address - one.address:x}"
        for name, (address, one) in zip(names, covered, strict=True)
    }


def _of(dump: Dump) -> tuple[set[int], set[str]]:
    """The threads and the wait classes of a look."""
    return {thread.ns_tid for thread in dump.threads}, {thread.wait for thread in dump.threads}


def _labels(thread: Thread) -> tuple[str, ...]:
    return tuple(frame.label for frame in thread.frames)


def _taker(waits: list[Wait], by_tid: dict[int, Thread]) -> str:
    """The server's function that most of them lock it in; "" where none has a name."""
    functions: Counter[str] = Counter()
    for wait in waits:
        functions.update(own_functions(_labels(by_tid[wait.waiter]))[:1])
    return functions.most_common(1)[0][0] if functions else ""


def _described(lock: _Lock) -> str:
    """``a mutex that open_table takes``, for one without a name."""
    one = f"an {lock.kind}" if lock.kind[0] in "IAEO" else f"a {lock.kind}"
    return f"{one} that {lock.taker} takes" if lock.taker else one
