"""Who holds the locks that threads wait for, look by look, read from the server's memory.

Only reads (process_vm_readv); what is read is believed where it names a thread that the look has seen.
"""

from __future__ import annotations

import bisect
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from innoscope.diagnose import futexes
from innoscope.diagnose.evidence import Held
from innoscope.diagnose.sections import own_functions

if TYPE_CHECKING:
    from collections.abc import Iterable

    from innoscope.diagnose.futexes import Wait
    from innoscope.stacks.model import Dump, Thread
    from innoscope.target.model import Target

#: Waiters, owners and locks that are kept.
_WAITERS_KEPT: Final = 1_000
_OWNERS_KEPT: Final = 3
_LOCKS_KEPT: Final = 20


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
        self._locks: dict[int, _Lock] = {}
        self._names: _Names | None = None

    def note(self, dump: Dump) -> None:
        """Remember who waits for whom at this look."""
        by_tid = {thread.ns_tid: thread for thread in dump.threads}
        found: dict[int, list[Wait]] = {}
        for wait in self._waits(dump):
            found.setdefault(wait.address, []).append(wait)
        for address, waits in found.items():
            self._add(address, waits, by_tid)

    def told(self) -> tuple[Held, ...]:
        """A record for each lock and owner, those for which most waited first."""
        locks = sorted(self._locks.items(), key=lambda item: -item[1].waited)[:_LOCKS_KEPT]
        return tuple(held for address, lock in locks for held in self._held(address, lock))

    def _waits(self, dump: Dump) -> list[Wait]:
        from innoscope import _native

        return futexes.waits(dump.threads, lambda places: _native.read_many(self._target.pid, places))

    def _add(self, address: int, waits: list[Wait], by_tid: dict[int, Thread]) -> None:
        first = waits[0]
        lock = self._locks.setdefault(address, _Lock(first.kind, first.name))
        lock.looks += 1
        lock.waited += len(waits)
        waiting = {wait.waiter for wait in waits}
        # One that still waited at the look has got the lock since: its stack does not say what for.
        owners = {owner: by_tid[owner] for owner in first.owners if owner in by_tid and owner not in waiting}
        lock.owners.update(set(first.owners) & by_tid.keys())
        if (bool(owners), len(waits)) >= (bool(lock.best), len(lock.waiters)):
            lock.waiters, lock.best = tuple(sorted(waiting)), owners
            lock.taker, lock.wait = _taker(waits, by_tid), by_tid[first.waiter].wait

    def _held(self, address: int, lock: _Lock) -> Iterable[Held]:
        name = lock.name or self._name(address) or lock.taker
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
                stack=tuple(frame.label for frame in thread.frames) if thread is not None else (),
            )

    def _name(self, address: int) -> str:
        if self._names is None:
            self._names = _Names(self._target.pid)
        return self._names.of(address)


class _Names:
    """Global variables of the executable by address."""

    def __init__(self, pid: int) -> None:
        from innoscope import _native

        try:
            variables = _native.CodeFile(pid).variables([""])
        except (
            OSError,
            _native.NativeError,
        ):  # it has just ended, or has no symbols: locks go without a name
            variables = []
        self._sorted = sorted((address, size, symbol) for symbol, address, size in variables)

    def of(self, address: int) -> str:
        """``LOCK_open``, ``log_sys+0x40`` inside a structure, "" where no variable covers the address."""
        from innoscope import _native

        place = bisect.bisect_right(self._sorted, (address, 1 << 62, "")) - 1
        if place < 0:
            return ""
        start, size, symbol = self._sorted[place]
        if not start <= address < start + size:
            return ""
        [name] = _native.demangle([symbol])
        return name if address == start else f"{name}+0x{address - start:x}"


def _taker(waits: list[Wait], by_tid: dict[int, Thread]) -> str:
    """``a mutex that open_table takes``: the function that most of them lock it in."""
    functions: Counter[str] = Counter()
    for wait in waits:
        labels = tuple(frame.label for frame in by_tid[wait.waiter].frames)
        functions.update(own_functions(labels)[:1])
    kind = waits[0].kind
    return f"a {kind} that {functions.most_common(1)[0][0]} takes" if functions else f"a {kind}"
