"""Who has a page or an index latched in MariaDB's InnoDB (10.6 and newer): ``block_lock`` and ``index_lock``.

Both are a ``sux_lock``: two futex words, a count, and behind them the ``pthread_t`` of who has it exclusively
or for update, 0 when nobody has. Sleepers wait on one of the words. That place is the same in all builds, so
names are not needed; a number that is no thread of the server is not believed, and other latches have none.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from innoscope.memory.locks.futexes import Wait
from innoscope.memory.locks.sessions import threads_of
from innoscope.sampling.descriptors import syscall_names
from innoscope.sampling.model import Trust

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Iterator

    from innoscope.memory.locks.layout import Memory
    from innoscope.sampling.model import Thread

#: From the first futex word to the owner (storage/innobase/include/sux_lock.h).
_OWNER: Final = 16
_LATCH: Final = re.compile(r"srw_mutex_impl<|ssux_lock_impl<|sux_lock<|ssux_lock|srw_lock")
_NEAR: Final = 4
KIND: Final = "InnoDB latch"


def waits(memory: Memory, dumped: Iterable[Thread], threads: Container[int]) -> list[Wait]:
    """The threads that slept for a latch which one of these threads has, perhaps a sleeper by now."""
    asleep = list(_asleep(dumped))
    bases = sorted({base for _, base in asleep})
    owners = dict(
        zip(bases, threads_of(memory, memory.numbers([base + _OWNER for base in bases])), strict=True)
    )
    return [Wait(thread, KIND, base, (owners[base],)) for thread, base in asleep if owners[base] in threads]


def _asleep(dumped: Iterable[Thread]) -> Iterator[tuple[int, int]]:
    """``(thread, address of the first word)``."""
    names = syscall_names()
    for thread in dumped:
        if thread.argument is None or thread.trust is not Trust.EXACT or thread.syscall is None:
            continue
        if names.get(thread.syscall) == "futex" and _in_a_latch(thread):
            yield thread.ns_tid, thread.argument & ~7


def _in_a_latch(thread: Thread) -> bool:
    """InnoDB calls ``syscall()`` itself; on stripped servers its own functions have no names."""
    if len(thread.frames) < _NEAR or thread.frames[0].function != "syscall":
        return False
    near = thread.frames[1:_NEAR]
    return near[0].function is None or any(_LATCH.search(frame.function or "") for frame in near)
