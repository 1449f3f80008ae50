"""Profile test servers, and provide the kernel's accounting and perf for comparison."""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Self, TypeAlias

import pytest

from innoscope._native import plain_name
from innoscope.sampling.profile.offcpu import OffCpuProfiler
from innoscope.sampling.profile.oncpu import OnCpuProfiler
from innoscope.sampling.profile.run import run
from innoscope.sampling.profile.setup import Naming
from innoscope.target.discover import find_one
from servers import Keeper, ensure_packages

if TYPE_CHECKING:
    from collections.abc import Collection

    from innoscope.sampling.model import Trust
    from innoscope.sampling.profile.model import Profile


def off_cpu(pid: int, seconds: float) -> Profile:
    """Profile the waits of a process's threads."""
    target = find_one(pid)
    return run(OffCpuProfiler(target), target, seconds)[0]


def on_cpu(pid: int, seconds: float, frequency: float = 99, *, kernel: bool = False) -> Profile:
    """Profile the CPU time of a process."""
    target = find_one(pid)
    return run(OnCpuProfiler(target, frequency, Naming(kernel=kernel)), target, seconds)[0]


Schedstat: TypeAlias = dict[int, tuple[int, int]]


def schedstat(pid: int) -> Schedstat:
    """Return each thread's (ns on a CPU, ns runnable) so far, according to the scheduler."""
    found = {}
    for task in Path(f"/proc/{pid}/task").iterdir():
        try:
            running, ready, _ = (task / "schedstat").read_text().split()
        except OSError:  # the thread has exited
            continue
        found[int(task.name)] = int(running), int(ready)
    return found


def check_sums(profile: Profile, before: Schedstat, after: Schedstat) -> None:
    """Assert that each thread's waits and CPU time add up to its wall time, and agree with the scheduler."""
    rows: Counter[int] = Counter()
    for row in profile.rows:
        rows[row.thread.tid] += row.number * 1000
    wall = profile.seconds * 1e9
    whole_time = [thread for thread in profile.threads if {thread.tid} <= before.keys() & after.keys()]
    assert len(whole_time) == len(before.keys() & after.keys())
    for thread in whole_time:
        assert rows[thread.tid] + thread.running_ns == pytest.approx(wall, rel=0.05), thread
        used = after[thread.tid][0] - before[thread.tid][0]
        assert thread.running_ns == pytest.approx(used, abs=0.05 * wall), thread


def check_complete(profile: Profile, sound: Collection[Trust]) -> None:
    """Check that at least 98 % of the profile has stacks with one of the given trust levels.

    If the check fails, the message contains the other stacks.
    """
    total = sum(row.number for row in profile.rows)
    others = [row for row in profile.rows if row.thread.trust not in sound]
    missing = sum(row.number for row in others)
    assert missing <= 0.02 * total, [
        (row.number / total, row.thread.trust, row.thread.wait, row.thread.comm, row.thread.frames[:6])
        for row in sorted(others, key=lambda row: -row.number)[:12]
    ]


#: If a profiler's timer fires while another interrupt is handled, the sample is taken at the end of that
#: handling, in this function. Such samples depend on the other profiler and not on the server, so ``shares``
#: ignores them.
_OTHERS_INTERRUPT = "irqentry_exit_to_user_mode"


def self_shares(profile: Profile) -> dict[str, float]:
    """Return each innermost function's percentage of the server's samples."""
    counts: Counter[str] = Counter()
    for row in profile.rows:
        frame = row.thread.frames[0] if row.thread.frames else None
        counts[one_name(frame.function) if frame and frame.function else "?"] += row.number
    return shares(counts)


def one_name(function: str) -> str:
    """Return a canonical name for a function of the C library that has several names."""
    return plain_name(function).replace("__memcpy_", "__memmove_")


def shares(counts: Counter[str]) -> dict[str, float]:
    """Return each function's percentage of the server's samples, largest first."""
    servers_own = Counter({name: count for name, count in counts.items() if name != _OTHERS_INTERRUPT})
    return {name: 100 * count / servers_own.total() for name, count in servers_own.most_common()}


def same_top(ours: dict[str, float], theirs: dict[str, float]) -> bool:
    """Return whether two profiles have the same top ten functions, except those close to the tenth."""
    top, their_top = list(ours)[:10], list(theirs)[:10]
    last = min(ours[top[-1]], theirs[their_top[-1]])
    odd = set(top) ^ set(their_top)
    return all(max(ours.get(name, 0), theirs.get(name, 0)) < last + 0.75 for name in odd)


class Perf:
    """Context manager around ``perf record --call-graph dwarf``; the results are available after the block.

    With ``by_cpu``, perf samples CPUs instead of threads, as Innoscope does. A thread's own timer fires
    just as the thread is switched in, which overstates finish_task_switch by half.
    """

    def __init__(self, pid: int, frequency: int, *, by_cpu: bool = False) -> None:
        ensure_packages(["linux-perf"])
        self._folder = tempfile.TemporaryDirectory(prefix="innoscope-perf-")
        self._file = Path(self._folder.name, "perf.data")
        self._command = [
            "perf", "record", "-q", "-e", "cpu-clock", "-F", str(frequency), "--call-graph", "dwarf",
            *(["-a"] if by_cpu else ["-p", str(pid)]), "-o", str(self._file),
        ]  # fmt: skip
        self._pid = pid
        self.shares: dict[str, float] = {}
        self.bytes = 0
        self.samples = 0

    @property
    def pid(self) -> int:
        return self._process.pid

    def __enter__(self) -> Self:
        """Start perf, and wait until its file begins to grow."""
        self._keeper = Keeper()
        self._process = subprocess.Popen(self._command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE)
        self._keeper.watch(self._process.pid)
        while not (self._file.exists() and self._file.stat().st_size > 0):
            assert self._process.poll() is None, self._process.communicate()[1]
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.communicate(timeout=60)
        self._keeper.close()
        self.bytes = self._file.stat().st_size
        script = ["perf", "script", "-G", "-i", str(self._file), "--pid", str(self._pid), "-F", "ip,sym"]
        output = subprocess.run(script, capture_output=True, text=True, check=True).stdout
        counts = Counter(_function(line) for line in output.splitlines() if line.strip())
        self.samples = counts.total()
        self.shares = shares(counts)
        self._folder.cleanup()


def _function(line: str) -> str:
    """Strip address and parameters from ``55e0c0de row_search_for_mysql(unsigned char*, …)``."""
    name = line.strip().partition(" ")[2].strip()
    if name in ("", "[unknown]"):
        return "?"
    return one_name(re.sub(r"\((?!anonymous namespace|\)).*", "", name))
