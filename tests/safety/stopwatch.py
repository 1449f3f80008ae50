"""Measure time, except for the time that is lost because other processes or machines use the CPUs."""

from __future__ import annotations

import os
import re
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

Value = TypeVar("Value")

_TICKS = os.sysconf("SC_CLK_TCK")
_THIS_THREAD = Path("/proc/thread-self")
#: Maximum seconds that any measurement may take in all.
_LONGEST_S = 15.0
#: Seconds for which the hypervisor may withhold a CPU while ``undisturbed`` measures.
_STOLEN_S = 0.1
#: Maximum number of measurements that the hypervisor disturbs.
_ATTEMPTS = 10


class Stopwatch:
    """Measures the seconds since its creation, except for the following times.

    - The time for which this thread has waited for a CPU.
    - With ``pid``: the longest time for which any thread of that process has waited for a CPU.
    - The longest time for which the hypervisor has withheld any CPU.
    """

    def __init__(self, pid: int | None = None) -> None:
        self._pid = pid
        self._waits, self._stolen = _waits(pid), _stolen()
        self._queued, self._created = queued(), time.monotonic()

    def seconds(self) -> float:
        """Return the seconds until now. Fail if the measurement took more than 15 s in all."""
        elapsed = time.monotonic() - self._created
        assert elapsed < _LONGEST_S, f"{elapsed:.1f} s in all"
        seconds = elapsed - (queued() - self._queued) - _stolen_since(self._stolen)
        waits = _waits(self._pid)
        common = waits.keys() & self._waits.keys()
        return seconds - max((waits[tid] - self._waits[tid] for tid in common), default=0.0)


def undisturbed(measure: Callable[[], Value]) -> Value:
    """Return the first result of ``measure`` during which the hypervisor did not withhold a CPU for long."""
    for _ in range(_ATTEMPTS):
        before = _stolen()
        result = measure()
        if _stolen_since(before) < _STOLEN_S:
            return result
    raise AssertionError(f"the hypervisor disturbed {_ATTEMPTS} measurements")


def queued(task: Path = _THIS_THREAD) -> float:
    """Return the seconds that a thread has waited for a CPU. ``task`` is its directory in /proc.

    The directory of a process stands for its main thread, also after it has exited.
    """
    return int((task / "schedstat").read_text().split()[1]) / 1e9


def _waits(pid: int | None) -> dict[str, float]:
    """Return the seconds that each thread of a process, except this thread, has waited for a CPU.

    Without ``pid``, the result is empty.
    """
    waits = {}
    for task in Path(f"/proc/{pid}/task").iterdir() if pid is not None else ():
        with suppress(FileNotFoundError, ProcessLookupError):  # the thread has exited
            waits[task.name] = queued(task)
    waits.pop(str(threading.get_native_id()), None)
    return waits


def _stolen() -> list[float]:
    """Return the seconds for which the hypervisor has withheld each CPU (``steal`` in proc_stat(5))."""
    cpus = re.findall(r"^cpu\d+ (.*)", Path("/proc/stat").read_text(), re.MULTILINE)
    return [int(times.split()[7]) / _TICKS for times in cpus]


def _stolen_since(before: list[float]) -> float:
    """Return the most seconds for which the hypervisor has withheld one CPU since ``before``."""
    return max(now - then for now, then in zip(_stolen(), before, strict=True))
