"""Read memory pressure, swapping, major faults and the control group's memory limit from the kernel."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final

#: Index of the major faults among the fields of /proc/PID/stat after the command's closing parenthesis.
_MAJOR_FAULTS: Final = 9
#: A memory limit of at least this number of bytes means "no limit": cgroup v1 reports a number near 2^63.
_UNLIMITED: Final = 1 << 60


class Host:
    """Read the host's counters at creation; ``rates`` returns their rates of change since then."""

    def __init__(self, pid: int, proc: Path = Path("/proc"), groups: Path = Path("/sys/fs/cgroup")) -> None:
        self._pid, self._proc, self._groups = pid, proc, groups
        self._began = time.monotonic()
        self._before = self._counters()

    def rates(self) -> dict[str, float]:
        """Return the available values.

        ``major_faults`` and ``swapped_in`` are numbers per second, ``memory_stall_ratio`` is a share of the
        time, and ``group_memory_ratio`` is the control group's current memory use as a share of its limit.
        """
        seconds = max(time.monotonic() - self._began, 1e-3)
        after = self._counters()
        grown = {
            name: (after[name] - before) / seconds for name, before in self._before.items() if name in after
        }
        return {name: max(0.0, rate) for name, rate in grown.items()} | self._group()

    def _group(self) -> dict[str, float]:
        for line in _text(self._proc / str(self._pid) / "cgroup").splitlines():
            _, controllers, path = line.split(":", 2)
            if not controllers:  # cgroup v2
                folder, used, most = self._groups / path.lstrip("/"), "memory.current", "memory.max"
            elif "memory" in controllers.split(","):
                folder = self._groups / "memory" / path.lstrip("/")
                used, most = "memory.usage_in_bytes", "memory.limit_in_bytes"
            else:
                continue
            have, limit = _text(folder / used).strip(), _text(folder / most).strip()
            if have.isdigit() and limit.isdigit() and 0 < int(limit) < _UNLIMITED:
                return {"group_memory_ratio": int(have) / int(limit)}
        return {}

    def _counters(self) -> dict[str, float]:
        found: dict[str, float] = {}
        stat = _text(self._proc / str(self._pid) / "stat").rpartition(")")[2].split()
        if len(stat) > _MAJOR_FAULTS:
            found["major_faults"] = float(stat[_MAJOR_FAULTS])
        for line in _text(self._proc / "vmstat").splitlines():
            if line.startswith("pswpin "):
                found["swapped_in"] = float(line.split()[1])
        # Format of a line: some avg10=0.00 avg60=0.00 avg300=0.00 total=MICROSECONDS
        for line in _text(self._proc / "pressure/memory").splitlines():
            if line.startswith("some "):
                found["memory_stall_ratio"] = float(line.rpartition("=")[2]) / 1e6
        return found


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="surrogateescape")
    except OSError:
        return ""
