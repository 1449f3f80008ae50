"""Read the CPU time and memory of a process, as the kernel reports them."""

from __future__ import annotations

import time
from pathlib import Path

#: CPUCLOCK_SCHED of linux/posix-timers.h counts nanoseconds; /proc/PID/stat counts ticks of 10 ms.
_CPU_CLOCK = 2


def cpu_seconds(pid: int) -> float:
    """Return the user and system time of all threads of a process, including exited ones."""
    return time.clock_gettime(~pid << 3 | _CPU_CLOCK)


def memory_mb(pid: int) -> dict[str, float]:
    """Return ``rss`` and ``rss_peak`` (with mapped files), ``anon`` (without) and ``file``, in 10⁶ bytes."""
    fields = dict(
        line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":" in line
    )
    return {
        "rss": _mb(fields["VmRSS"]),
        "rss_peak": _mb(fields["VmHWM"]),
        "anon": _mb(fields["RssAnon"]) + _mb(fields["RssShmem"]),
        "file": _mb(fields["RssFile"]),
    }


def _mb(field: str) -> float:
    return int(field.split()[0]) * 1024 / 1e6
