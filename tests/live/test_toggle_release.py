"""Memory given back by live servers: their allocator is called by gdb, which holds them for a moment."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from innoscope.target.discover import find_one
from innoscope.toggles import allocator
from innoscope.toggles.gdbway import GdbWriter
from innoscope.toggles.model import Way
from live import figures
from servers import ensure_packages
from workloads import Crowd, Idle

if TYPE_CHECKING:
    from collections.abc import Callable

    from servers import Server

CALLS = Way(
    "gdb",
    calls={
        "glibc": "(int)malloc_trim((unsigned long)0)",
        "tcmalloc": "(void)MallocExtension_ReleaseFreeMemory()",
        "jemalloc": '(int)mallctl("arena.4096.purge", (long)0, (long)0, (long)0, (long)0)',
    },
)
ALLOCATORS = {"mysql-9.7": "tcmalloc"}
#: Session variables of 50 KB each, which are freed when their session ends.
VARIABLES = ", ".join(f"@v{number} = REPEAT('x', 50000)" for number in range(20))
SESSIONS = 100
PATIENCE_S = 10


@pytest.fixture(scope="module", autouse=True)
def _gdb() -> None:
    ensure_packages(["gdb"])


#: poll, select, epoll_wait, ppoll of x86-64: where a server's first thread waits for clients.
WAITS_FOR_CLIENTS = {"7", "23", "232", "271"}


def first_thread(server: Server) -> str:
    """Its system call, with all arguments, its stack pointer and its program counter, when it rests.

    It may still be on its way back from the last client that came.
    """
    deadline = time.monotonic() + PATIENCE_S
    while True:
        call = Path(f"/proc/{server.pid}/task/{server.pid}/syscall").read_text()
        if call.split()[0] in WAITS_FOR_CLIENTS:
            return call
        assert time.monotonic() < deadline, f"{server.name} waits for no client: {call}"
        time.sleep(0.002)


def test_memory_is_given_back(any_server: Server) -> None:
    with Crowd(any_server, SESSIONS, "mysql", (f"SET {VARIABLES}",)):
        pass
    parked = first_thread(any_server)
    with GdbWriter(find_one(pid=any_server.pid)) as writer:
        [step] = writer.prepare(CALLS, ())
        assert (step.old, step.new) == (None, None)
        expected, before = writer.stall_s, writer.read(step)
        writer.write(step)
        after = writer.read(step)
        assert writer.last is not None
        held = writer.last.held_s

    assert held is not None
    assert held <= writer.held_s
    assert first_thread(any_server) == parked, "it waits for clients as before"
    any_server.connect().close()
    assert int(after) < int(before)
    figures.record(
        "memory released",
        any_server.name,
        f"{step.setting}: {int(before) / 1e6:.1f} → {int(after) / 1e6:.1f} MB, "
        f"stopped for {held * 1000:.0f} ms ({expected * 1000:.0f} expected)",
        before=before,
        after=after,
        held_s=held,
    )


def test_the_allocator_is_told(any_server: Server) -> None:
    found = allocator.detect(find_one(pid=any_server.pid))
    assert found.name == ALLOCATORS.get(any_server.name, "glibc")


def test_a_thousand_threads_are_held_for_less_than_the_bound(server: Callable[[str], Server]) -> None:
    big = server("mysql-5.6.24")
    with contextlib.ExitStack() as stack:
        stack.enter_context(Idle(big, 1000))
        writer = stack.enter_context(GdbWriter(find_one(pid=big.pid)))
        [step] = writer.prepare(CALLS, ())
        expected = writer.stall_s
        writer.write(step)
        assert writer.last is not None
        held = writer.last.held_s
    assert held is not None
    assert held <= writer.held_s
    figures.record(
        "gdb's stall",
        big.name,
        f"1,000 threads: stopped for {held * 1000:.0f} ms ({expected * 1000:.0f} expected)",
    )
