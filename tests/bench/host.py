"""Describe the host on which the benchmarks run."""

from __future__ import annotations

import os
import platform
import sys
import time
from pathlib import Path
from typing import Any


def facts() -> dict[str, Any]:
    """Return the command, kernel, processor, number of cores, load average before the start, and date."""
    return {
        "command": " ".join(["python -m bench", *sys.argv[1:]]),
        "kernel": platform.release(),
        "machine": platform.machine(),
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "load_average": os.getloadavg(),
        "taken_at": time.strftime("%Y-%m-%d %H:%M:%S %z"),
    }


def heading(known: dict[str, Any]) -> str:
    """Format the facts as one line."""
    load = known["load_average"][0]
    return (
        f"`{known['command']}` on {known['taken_at'][:10]}: kernel {known['kernel']} ({known['machine']}), "
        f"{known['cores']} cores, {known['cpu']}; load average before the start {load:.2f}."
    )


def _cpu() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return "unknown processor"
