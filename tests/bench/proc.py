"""What /proc says of a process's CPU time and memory."""

from __future__ import annotations

import os
from pathlib import Path

_TICK_S = 1 / os.sysconf("SC_CLK_TCK")
_UTIME, _STIME = 11, 12  # after the command's closing bracket


def cpu_seconds(pid: int) -> float:
    """User and system time of all threads, the ended ones included."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[_UTIME]) + int(fields[_STIME])) * _TICK_S


def memory_mb(pid: int) -> dict[str, float]:
    """``rss_peak`` (with mapped files) and ``anon`` (without), in MB of 10⁶ bytes."""
    fields = dict(
        line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":" in line
    )
    return {
        "rss_peak": _mb(fields["VmHWM"]),
        "anon": _mb(fields["RssAnon"]) + _mb(fields["RssShmem"]),
    }


def _mb(field: str) -> float:
    return int(field.split()[0]) * 1024 / 1e6
