"""Read the pressure on the host's CPUs, I/O and memory, and the limits of the server's cgroup."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Final

from innoscope.diagnose import group_io

#: Indexes among the fields of /proc/PID/stat after the command's closing parenthesis.
_MAJOR_FAULTS, _USER_TICKS, _SYSTEM_TICKS = 9, 11, 12
_TICKS_PER_SECOND: Final = os.sysconf("SC_CLK_TCK")
#: Indexes of the idle and iowait times among the numbers in the first line of /proc/stat.
_IDLE, _IOWAIT = 3, 4
#: A memory limit of this many bytes or more means "no limit": cgroup v1 reports a number near 2^63.
_UNLIMITED: Final = 1 << 60


class HostCounters:
    """Reads the host's counters at creation; ``rates`` returns their rates of change since then."""

    def __init__(self, pid: int, proc: Path = Path("/proc"), groups: Path = Path("/sys/fs/cgroup")) -> None:
        self._pid, self._proc, self._groups = pid, proc, groups
        self._began = time.monotonic()
        self._before = self._counters()
        self._io_before = {folder: group_io.totals(folder) for folder in self._io_folders()}

    def rates(self) -> dict[str, float]:
        """Return the available values.

        - ``server_cpus``: number of CPUs that the server uses
        - ``cpus``: number of CPUs on which the server may run
        - ``cpu_busy_ratio``: the used share of the host's total CPU time
        - ``cpu_stall_ratio``, ``io_stall_ratio``, ``memory_stall_ratio``: share of the time in which
          at least one process on the host was waiting for a CPU, for storage or for memory (/proc/pressure)
        - ``throttled_ratio``: share of the CPU quota periods in which the server's cgroup, or an
          ancestor of it, used up its quota and was throttled until the next period
        - ``group_io_limited``: 1 if the server's cgroup or an ancestor limits I/O, else 0
        - ``group_io_used_ratio``: the highest I/O rate of such a cgroup, as a share of its limit
        - ``group_memory_ratio``: memory use of the server's cgroup as a share of its limit
        - ``major_faults``: the server's major page faults per second
        - ``swapped_in``: pages that the host swaps in per second
        """
        seconds = max(time.monotonic() - self._began, 1e-3)
        after = self._counters()
        grown = {
            name: (after[name] - before) / seconds for name, before in self._before.items() if name in after
        }
        rates = {name: max(0.0, rate) for name, rate in grown.items()}
        busy, idle = rates.pop("cpu_busy_ticks", 0.0), rates.pop("cpu_idle_ticks", 0.0)
        if busy + idle > 0:
            rates["cpu_busy_ratio"] = busy / (busy + idle)
        throttled, periods = rates.pop("throttled_periods", 0.0), rates.pop("quota_periods", 0.0)
        if periods > 0:
            rates["throttled_ratio"] = throttled / periods
        return rates | self._cpus() | self._io_limited() | self._io_used(seconds) | self._group()

    def _cpus(self) -> dict[str, float]:
        for line in _text(self._proc / str(self._pid) / "status").splitlines():
            name, _, mask = line.partition(":")
            if name == "Cpus_allowed":  # hexadecimal, with a comma after every eight digits
                return {"cpus": float(int(mask.replace(",", ""), 16).bit_count())}
        return {}

    def _io_limited(self) -> dict[str, float]:
        """Return whether a cgroup limits I/O, according to io.max or, in cgroup v1, blkio.throttle."""
        files = [folder / "io.max" for folder in self._folders("io")]
        for folder in self._folders("blkio"):
            files += folder.glob("blkio.throttle.*_device")
        files = [file for file in files if file.exists()]
        return {"group_io_limited": float(any(_text(file).strip() for file in files))} if files else {}

    def _io_used(self, seconds: float) -> dict[str, float]:
        ratios = (
            group_io.used_ratio(group_io.limits(folder), before, group_io.totals(folder), seconds)
            for folder, before in self._io_before.items()
        )
        found = [ratio for ratio in ratios if ratio is not None]
        return {"group_io_used_ratio": max(0.0, *found)} if found else {}

    def _io_folders(self) -> list[Path]:
        return [*self._folders("io"), *self._folders("blkio")]

    def _folders(self, controller: str) -> list[Path]:
        """Return the directories of the server's cgroup and its ancestors for a controller."""
        for line in _text(self._proc / str(self._pid) / "cgroup").splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers and controller not in controllers.split(","):
                continue
            root = self._groups / controllers if controllers else self._groups
            folder = root / path.lstrip("/")
            return [one for one in (folder, *folder.parents) if one.is_relative_to(root)]
        return []

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
        if len(stat) > _SYSTEM_TICKS:
            found["major_faults"] = float(stat[_MAJOR_FAULTS])
            ticks = int(stat[_USER_TICKS]) + int(stat[_SYSTEM_TICKS])
            found["server_cpus"] = ticks / _TICKS_PER_SECOND
        for line in _text(self._proc / "vmstat").splitlines():
            if line.startswith("pswpin "):
                found["swapped_in"] = float(line.split()[1])
        # Format of a line: some avg10=0.00 avg60=0.00 avg300=0.00 total=MICROSECONDS
        for resource in ("cpu", "io", "memory"):
            for line in _text(self._proc / "pressure" / resource).splitlines():
                if line.startswith("some "):
                    found[f"{resource}_stall_ratio"] = float(line.rpartition("=")[2]) / 1e6
        # cpu user nice system idle iowait irq softirq steal guest guest_nice, in ticks, summed over all CPUs
        times = [float(one) for one in _text(self._proc / "stat").partition("\n")[0].split()[1:9]]
        if len(times) == 8:
            found["cpu_idle_ticks"] = times[_IDLE] + times[_IOWAIT]
            found["cpu_busy_ticks"] = sum(times) - found["cpu_idle_ticks"]
        return found | self._quota()

    def _quota(self) -> dict[str, float]:
        """Return the counters of the most throttled cgroup that has a CPU quota."""
        found: list[tuple[float, float]] = []
        for folder in self._folders("cpu"):
            stat = dict(line.split() for line in _text(folder / "cpu.stat").splitlines())
            if int(stat.get("nr_periods", 0)):
                found.append((float(stat["nr_throttled"]), float(stat["nr_periods"])))
        if not found:
            return {}
        throttled, periods = max(found)
        return {"throttled_periods": throttled, "quota_periods": periods}


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="surrogateescape")
    except OSError:
        return ""
