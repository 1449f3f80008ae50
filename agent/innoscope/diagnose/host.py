"""What the host's kernel says while we look: memory pressure, swapping, the server's major faults."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final

#: Fields of /proc/PID/stat after the command's closing bracket.
_MAJOR_FAULTS: Final = 9


class Host:
    """Read at the start; ``rates`` says what has changed since."""

    def __init__(self, pid: int, proc: Path = Path("/proc")) -> None:
        self._pid, self._proc = pid, proc
        self._began = time.monotonic()
        self._before = self._counters()

    def rates(self) -> dict[str, float]:
        """``major_faults`` and ``swapped_in`` a second, ``memory_stall_ratio`` of the time: what there is."""
        seconds = max(time.monotonic() - self._began, 1e-3)
        after = self._counters()
        grown = {
            name: (after[name] - before) / seconds for name, before in self._before.items() if name in after
        }
        return {name: max(0.0, rate) for name, rate in grown.items()}

    def _counters(self) -> dict[str, float]:
        found: dict[str, float] = {}
        stat = _text(self._proc / str(self._pid) / "stat").rpartition(")")[2].split()
        if len(stat) > _MAJOR_FAULTS:
            found["major_faults"] = float(stat[_MAJOR_FAULTS])
        for line in _text(self._proc / "vmstat").splitlines():
            if line.startswith("pswpin "):
                found["swapped_in"] = float(line.split()[1])
        # some avg10=0.00 avg60=0.00 avg300=0.00 total=MICROSECONDS
        for line in _text(self._proc / "pressure/memory").splitlines():
            if line.startswith("some "):
                found["memory_stall_ratio"] = float(line.rpartition("=")[2]) / 1e6
        return found


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
