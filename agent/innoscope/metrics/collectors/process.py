"""Collect the server's process metrics from /proc: state, CPU time by kind of thread, memory and I/O.

This also works if the server is stopped or hangs.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Final

from innoscope.common.samples import Sample
from innoscope.metrics.collectors.errors import CollectorFailed
from innoscope.metrics.collectors.kinds import KINDS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from innoscope.target.model import Target

_TICKS: Final = os.sysconf("SC_CLK_TCK")
_TICK_NS: Final = 1_000_000_000 // _TICKS
_PAGE: Final = os.sysconf("SC_PAGE_SIZE")
#: Minimum seconds between reads of all threads' CPU times. Reading one thread takes 7 µs.
_CPU_EVERY_S: Final = 5.0
#: Number of threads read between checks of the time limit.
_CPU_PART: Final = 500
#: Maximum seconds per scrape for reading CPU times; the next scrape continues.
_CPU_READ_S: Final = 0.05
#: Pause between reads, as a multiple of the time that reading all threads takes. This limits reading to
#: 0.5 % of a core for any number of threads.
_CPU_PAUSE: Final = 200
# Indexes among the fields of /proc/PID/stat after the command's closing parenthesis.
_STATE, _UTIME, _STIME, _THREADS, _START = 0, 11, 12, 17, 19
_MOST_BYTES: Final = 4096


class ProcessCollector:
    """Collects the metrics of one process. ``kinds`` returns the known kinds of threads, by thread id."""

    name = "process"
    timeout = 0.5

    def __init__(
        self,
        target: Target,
        kinds: Callable[[], Mapping[int, str]] = dict,
        *,
        cpu_every_s: float = _CPU_EVERY_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._target = target
        self._kinds = kinds
        self._cpu_every_s = cpu_every_s
        self._clock = clock
        self._cpu = CpuByKind()
        self._cpu_due: float | None = None
        self._reading: _CpuReading | None = None
        self._started_at = _boot_time() + target.start_time / _TICKS
        version = target.version_text or ".".join(map(str, target.version))
        self._info = (target.flavour, version, target.build_id or "", target.symbols)

    def collect(self) -> Iterable[Sample]:
        """Return all samples.

        Raise CollectorFailed (``gone``) if the process exited or its pid was reused.
        """
        pid = self._target.pid
        try:
            stat = _read(pid, "stat").rpartition(b")")[2].split()
            if stat[_STATE] in b"ZX" or int(stat[_START]) != self._target.start_time:
                raise CollectorFailed("gone", f"process {pid} has exited")
            return self._samples(pid, stat)
        except (FileNotFoundError, ProcessLookupError, IndexError) as error:
            raise CollectorFailed("gone", f"process {pid} has exited") from error

    def _samples(self, pid: int, stat: list[bytes]) -> list[Sample]:
        self._read_cpu(pid, stat)
        status, io = _fields(_read(pid, "status")), _fields(_read(pid, "io"))
        return [
            Sample("mysqld_up", 1),
            Sample("mysqld_info", 1, self._info),
            Sample("mysqld_start_time_seconds", self._started_at),
            Sample("mysqld_stopped", int(stat[_STATE] in (b"T", b"t"))),
            Sample("mysqld_traced", int(status[b"TracerPid"] != b"0")),
            Sample("mysqld_os_threads", int(stat[_THREADS])),
            *(Sample("mysqld_cpu_seconds", ns / 1e9, (kind,)) for kind, ns in self._cpu.groups.items()),
            Sample("mysqld_resident_memory_bytes", int(_read(pid, "statm").split()[1]) * _PAGE),
            Sample("mysqld_open_files", _open_files(pid)),
            Sample("mysqld_read_bytes", int(io[b"read_bytes"])),
            Sample("mysqld_written_bytes", int(io[b"write_bytes"])),
        ]

    def _read_cpu(self, pid: int, stat: list[bytes]) -> None:
        """If a read is due, read the CPU times of all threads or, if there are many, of the next batch."""
        began = self._clock()
        if self._reading is None:
            if self._cpu_due is not None and began < self._cpu_due:
                return
            total = (int(stat[_UTIME]) + int(stat[_STIME])) * _TICK_NS
            self._reading = _CpuReading(total, _thread_ids(pid))
            self._cpu_due = began + self._cpu_every_s
        reading = self._reading
        complete = reading.read_more(pid, lambda: self._clock() - began >= _CPU_READ_S)
        reading.seconds += self._clock() - began
        if complete:
            self._cpu.add(reading.total, reading.found, self._kinds())
            self._reading = None
            if self._cpu_every_s:  # if 0, read at each scrape
                self._cpu_due = max(self._cpu_due or began, began + _CPU_PAUSE * reading.seconds)


class _CpuReading:
    """One pass over all threads' CPU times, which may span several scrapes.

    ``total`` is the CPU time of the whole process, read before any thread's.
    """

    def __init__(self, total: int, tids: list[str]) -> None:
        self.total = total
        self.found: dict[int, int] = {}
        self.seconds = 0.0
        self._left = tids

    def read_more(self, pid: int, enough: Callable[[], bool]) -> bool:
        """Read CPU times until no thread is left or ``enough`` returns true. Return whether none is left."""
        while self._left and (not self.found or not enough()):
            part, self._left = self._left[:_CPU_PART], self._left[_CPU_PART:]
            self.found.update(_thread_cpu(pid, part))
        return not self._left


class CpuByKind:
    """Sums of CPU time by kind of thread, in nanoseconds. They never decrease.

    The time of exited threads is included. The time between a thread's last read and its exit is known only
    from the process's total, and counts as ``other``.
    """

    def __init__(self) -> None:
        self.groups = dict.fromkeys(KINDS, 0)
        self._counted: dict[int, int] = {}
        self._known: set[int] = set()
        self._initial: int | None = None  # time of threads that exited before the first read

    def add(self, total: int, threads: Mapping[int, int], kinds: Mapping[int, str]) -> None:
        """Add one pass: the process's total, read first, and its threads' times."""
        counted: dict[int, int] = {}
        waiting = 0
        for tid, cpu in threads.items():
            kind = kinds.get(tid)
            if kind is None and tid not in self._known:  # the next snapshot will classify it
                waiting += cpu
                continue
            before = self._counted.get(tid, 0)
            # If the value is smaller than before, the thread id was reused.
            self.groups[kind or "other"] += cpu - before if cpu >= before else cpu
            counted[tid] = cpu
        self._counted, self._known = counted, set(threads)
        rest = total - sum(self.groups.values()) - waiting
        if self._initial is None:
            self._initial = max(0, rest)
        self.groups["other"] += max(0, rest - self._initial)


def _thread_ids(pid: int) -> list[str]:
    return os.listdir(f"/proc/{pid}/task")  # noqa: PTH208 - pathlib is slower


def _thread_cpu(pid: int, tids: Iterable[str]) -> dict[int, int]:
    """Return each thread's CPU time in nanoseconds, from /proc/PID/task/TID/schedstat."""
    found = {}
    folder = os.open(f"/proc/{pid}/task", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for tid in tids:
            try:
                file = os.open(f"{tid}/schedstat", os.O_RDONLY | os.O_CLOEXEC, dir_fd=folder)
            except OSError:  # the thread has exited, or the kernel does not support schedstat
                continue
            try:
                found[int(tid)] = int(os.read(file, 64).split(None, 1)[0])
            except (OSError, IndexError):
                continue
            finally:
                os.close(file)
    finally:
        os.close(folder)
    return found


def _open_files(pid: int) -> int:
    """Return the number of open descriptors. Before Linux 6.2, stat reports 0, so the entries are counted."""
    path = f"/proc/{pid}/fd"
    return os.stat(path).st_size or len(os.listdir(path))  # noqa: PTH116, PTH208 - pathlib is slower


def _read(pid: int, name: str) -> bytes:
    file = os.open(f"/proc/{pid}/{name}", os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(file, _MOST_BYTES)
    finally:
        os.close(file)


def _fields(text: bytes) -> dict[bytes, bytes]:
    """Parse lines of the form ``name: value``."""
    pairs = (line.partition(b":") for line in text.splitlines())
    return {name: value.strip() for name, _, value in pairs}


def _boot_time() -> float:
    """Return the Unix time of boot (btime in /proc/stat)."""
    with open("/proc/stat", "rb") as table:  # noqa: PTH123
        for line in table:
            if line.startswith(b"btime "):
                return float(line.split()[1])
    raise CollectorFailed("unsupported", "/proc/stat has no btime")
