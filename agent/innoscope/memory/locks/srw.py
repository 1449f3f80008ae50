"""Find the owners of InnoDB's page and index latches in MariaDB 10.6 and newer.

``block_lock`` and ``index_lock`` are of type ``sux_lock``: two futex words, a count, and the ``pthread_t`` of
the exclusive or update owner (0 if there is none). Waiters sleep on one of the futex words.

The owner's offset is the same in all builds, so no symbols are needed. Values that are not ids of server
threads are ignored. Other kinds of latches store no owner.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from innoscope.memory.locks.futexes import Wait
from innoscope.memory.locks.sessions import threads_of
from innoscope.sampling.descriptors import syscall_names
from innoscope.sampling.model import AT_REST

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Iterator

    from innoscope.memory.locks.layout import ProcessMemory
    from innoscope.sampling.model import Thread

#: Offset of the owner from the first futex word (storage/innobase/include/sux_lock.h).
_OWNER: Final = 16
_LATCH: Final = re.compile(r"srw_mutex_impl<|ssux_lock_impl<|sux_lock<|ssux_lock|srw_lock")
_NEAR: Final = 4
KIND: Final = "InnoDB latch"


def waits(memory: ProcessMemory, threads: Iterable[Thread], tids: Container[int]) -> list[Wait]:
    """Return a Wait for each thread that sleeps on a latch that one of ``tids`` currently owns."""
    asleep = list(_asleep(threads))
    bases = sorted({base for _, base in asleep})
    owners = dict(
        zip(bases, threads_of(memory, memory.numbers([base + _OWNER for base in bases])), strict=True)
    )
    return [Wait(thread, KIND, base, (owners[base],)) for thread, base in asleep if owners[base] in tids]


def _asleep(threads: Iterable[Thread]) -> Iterator[tuple[int, int]]:
    """Yield ``(thread, address of the first futex word)`` for each waiting thread."""
    names = syscall_names()
    for thread in threads:
        if thread.argument is None or thread.trust not in AT_REST or thread.syscall is None:
            continue
        if names.get(thread.syscall) == "futex" and _waits_for_latch(thread):
            yield thread.ns_tid, thread.argument & ~7


def _waits_for_latch(thread: Thread) -> bool:
    """Return whether InnoDB's latch code, or a function without a symbol, called ``syscall()``."""
    if len(thread.frames) < _NEAR or thread.frames[0].function != "syscall":
        return False
    near = thread.frames[1:_NEAR]
    return near[0].function is None or any(_LATCH.search(frame.function or "") for frame in near)
