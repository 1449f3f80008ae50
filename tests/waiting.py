"""Wait until a condition holds."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

Value = TypeVar("Value")


def until(
    condition: Callable[[], Value],
    message: Callable[[], object] = lambda: "the condition does not hold",
    *,
    within_s: float = 60,
    every_s: float = 0.05,
) -> Value:
    """Return the first true value of ``condition``. After ``within_s`` seconds, fail with ``message``."""
    deadline = time.monotonic() + within_s
    while not (found := condition()):
        assert time.monotonic() < deadline, message()
        time.sleep(every_s)
    return found


def until_asleep(pid: int) -> None:
    """Wait until all threads of a process sleep.

    A server reports that a thread is waiting for a lock shortly before the thread goes to sleep.
    """
    until(
        lambda: "R" not in thread_states(pid), lambda: f"a thread of process {pid} always runs", every_s=0.01
    )


def thread_states(pid: int) -> set[str]:
    """Return the states of a process's threads, such as R (running or ready to run) and S (asleep)."""
    states = set()
    for task in Path(f"/proc/{pid}/task").iterdir():
        with suppress(OSError):  # the thread has exited
            states.add((task / "stat").read_text().rpartition(")")[2].split()[0])
    return states
