"""Read the CPU time and memory of a process, as the kernel reports them."""

from __future__ import annotations

import time
from pathlib import Path

#: CPUCLOCK_SCHED in linux/posix-timers.h, which counts nanoseconds; /proc/PID/stat counts ticks of 10 ms.
_CPU_CLOCK = 2


def cpu_seconds(pid: int) -> float:
    """Return the user and system time of all threads of a process, including exited ones."""
    return time.clock_gettime(~pid << 3 | _CPU_CLOCK)


def memory_mb(pid: int) -> dict[str, float]:
    """Return ``rss`` and ``rss_peak`` (with mapped files), ``anon`` (without) and ``file``, in 10⁶ bytes.

    ``pss`` is ``rss`` with each page divided by the number of processes that map it.
    """
    fields = _fields(pid, "status") | _fields(pid, "smaps_rollup")
    return {
        "rss": _mb(fields["VmRSS"]),
        "pss": _mb(fields["Pss"]),
        "rss_peak": _mb(fields["VmHWM"]),
        "anon": _mb(fields["RssAnon"]) + _mb(fields["RssShmem"]),
        "file": _mb(fields["RssFile"]),
    }


def _fields(pid: int, name: str) -> dict[str, str]:
    lines = Path(f"/proc/{pid}/{name}").read_text().splitlines()
    return dict(line.split(":", 1) for line in lines if ":" in line)


def _mb(field: str) -> float:
    return int(field.split()[0]) * 1024 / 1e6
