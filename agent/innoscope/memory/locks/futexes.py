"""Find the owners of the C library's mutexes and rwlocks. glibc stores the owner in the lock.

The lock's address is an argument of the waiter's system call. The owner is at a fixed offset in
``pthread_mutex_t`` and ``pthread_rwlock_t``, whose layouts have not changed since glibc 2.25
(struct_mutex.h and struct_rwlock.h; the offsets are the same on x86-64 and arm64). No symbols are needed, so
this works on stripped servers too.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from innoscope.sampling.descriptors import syscall_names
from innoscope.sampling.model import AT_REST

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from innoscope.sampling.model import Thread

    ReadMany = Callable[[Sequence[tuple[int, int]]], list[bytes | None]]

#: Number of innermost frames that are searched for the locking function.
_NEAR: Final = 4
_LOCKS: Final = re.compile(
    r"_*(?:pthread|PTHREAD)_(?:(mutex)_(?:cond_|clock|timed)?lock\w*|(rwlock)_(?:clock|timed)?(?:rd|wr)lock\w*)"
)
_MUTEX: Final = struct.Struct("<iIiIi")  # __lock, __count, __owner, __nusers, __kind
_RWLOCK: Final = struct.Struct(
    "<IIIIIIii"
)  # __readers, __writers, __wrphase_futex, …, __cur_writer, __shared
_WRITER: Final = 6
#: Offsets of the rwlock's futexes: __wrphase_futex, __writers_futex and __readers.
_PHASE, _WRITERS, _READERS = 8, 12, 0
#: Maximum value of the phase futex. If a thread waits on ``__readers``, a higher bit of that word is set.
_PHASE_MOST: Final = 3


@dataclass(frozen=True, slots=True)
class Wait:
    """A waiting thread, the lock that it is waiting for, and the lock's current owners.

    Threads are identified by their id in the server's pid namespace. ``owners`` is empty if the lock has been
    released. It is also empty if readers hold an rwlock, because glibc only counts readers. ``kind`` and
    ``name`` are for display.
    """

    waiter: int
    kind: str
    address: int
    owners: tuple[int, ...]
    name: str = ""


def waits(threads: Iterable[Thread], read_many: ReadMany) -> list[Wait]:
    """Return a Wait, with the current owner, for each thread that is waiting for a C library lock."""
    asleep = list(_asleep(threads))
    places = sorted({(address, kind) for _, address, kind in asleep})
    bases = _bases(places, read_many)
    locks = sorted({(base, kind) for (_, kind), base in bases.items()})
    size = {"mutex": _MUTEX.size, "rwlock": _RWLOCK.size}
    raw = read_many([(base, size[kind]) for base, kind in locks])
    owners = {lock: _owner(lock[1], content) for lock, content in zip(locks, raw, strict=True)}
    found = []
    for tid, address, kind in asleep:
        base = bases[address, kind]
        found.append(Wait(tid, kind, base, owners[base, kind]))
    return found


def _asleep(threads: Iterable[Thread]) -> Iterator[tuple[int, int, str]]:
    """Yield ``(thread, address of the futex, kind of lock)`` for each waiting thread."""
    names = syscall_names()
    for thread in threads:
        if thread.argument is None or thread.trust not in AT_REST or thread.syscall is None:
            continue
        if names.get(thread.syscall) == "futex" and (kind := _kind(thread)):
            yield thread.ns_tid, thread.argument, kind


def _kind(thread: Thread) -> str | None:
    """Return the kind of lock, from the innermost functions; None if the thread is not waiting for a lock."""
    for frame in thread.frames[:_NEAR]:
        match = _LOCKS.match(frame.function or "")
        if match:
            return match[1] or match[2]
        if frame.function and "pthread_cond" in frame.function:
            return None
    return None


def _bases(places: list[tuple[int, str]], read_many: ReadMany) -> dict[tuple[int, str], int]:
    """Return the start address of each lock. A mutex starts at its futex, an rwlock at or before it."""
    found = {}
    values = read_many([(address, 4) for address, _ in places])
    for (address, kind), value in zip(places, values, strict=True):
        offset = 0
        if kind == "rwlock":
            phase = value is not None and int.from_bytes(value, "little") <= _PHASE_MOST
            offset = _WRITERS if address % 8 else _PHASE if phase else _READERS
        found[address, kind] = address - offset
    return found


def _owner(kind: str, content: bytes | None) -> tuple[int, ...]:
    if content is None:
        return ()
    owner = _MUTEX.unpack(content)[2] if kind == "mutex" else _RWLOCK.unpack(content)[_WRITER]
    return (owner,) if owner > 0 else ()
