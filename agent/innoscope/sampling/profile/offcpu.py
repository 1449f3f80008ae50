"""Profile off-CPU time: exact times from scheduler events, and stacks from sampled waits."""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from innoscope import _native
from innoscope.common.errors import InnoscopeError, KernelUnable, NoRights
from innoscope.sampling.missing_names import missing_names
from innoscope.sampling.profile.model import MICROSECONDS, Profile, Row
from innoscope.sampling.profile.naming import ThreadBuilder
from innoscope.sampling.profile.setup import Naming, open_samples
from innoscope.target.container import require_host_pids
from innoscope.target.native_errors import RUN_AS_ROOT, failure, translating

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from innoscope._native import Waits
    from innoscope.target.model import Target

#: Target number of stacks per second, for all threads together.
MAX_STACKS_PER_S: Final = 2000
#: Initial maximum number of stacks per thread in one window of 134 ms (WINDOW_NS in offcpu.bpf.c).
_INITIAL_LIMIT: Final = 12
_RING_BYTES: Final = 32 << 20
_ADJUST_S: Final = 0.25
#: Snapshots capture the stacks of long waits that were not sampled when they began. A snapshot costs 0.4 ms
#: of CPU for 30 threads. With an interval of 20 ms instead of 50 ms, waits without a stack fell from 1.2 to
#: 0.8 % of the time (16 committing clients, MariaDB 11.4.5, load average 9 on 2 CPUs).
_SNAPSHOT_CPU_SHARE: Final = 0.02
_MIN_PAUSE_S: Final = 0.02
_MIN_THREADS: Final = 16384


@contextmanager
def _explaining_bpf() -> Iterator[None]:
    """Convert BPF errors to errors with a remedy: profiling CPU time needs no BPF."""
    try:
        yield
    except _native.NativeError as error:
        found = failure(error)
        what = f"cannot profile off-CPU time without BPF: {found.detail}"
        remedy = "innoscope profile, which shows CPU time, needs no BPF"
        if found.kind == "rights":
            raise NoRights(what, remedy=f"{RUN_AS_ROOT}; {remedy}") from error
        if found.kind == "bpf":
            raise KernelUnable(what, remedy=remedy) from error
        raise


class OffCpuProfiler:
    """Profiles the off-CPU time of one server. Raises NoRights, KernelUnable or NoSuchProcess."""

    def __init__(self, target: Target, naming: Naming | None = None) -> None:
        require_host_pids("profile")
        naming = naming or Naming()
        self.target = target
        with translating(target.pid), _explaining_bpf():
            self._program = _native.OffCpu(
                target.pid,
                target.start_time,
                kernel=naming.kernel,
                ring_bytes=_RING_BYTES,
                most_threads=max(_MIN_THREADS, 4 * target.threads),
            )
            ring = self._program.ring
        self._samples, notes = open_samples(target, ring, naming)
        self._builder = ThreadBuilder(target.pid, self._samples)
        self._notes = dict.fromkeys(notes)
        if self._program.snapshot_problem:
            self._notes[f"no stacks of threads that are not running: {self._program.snapshot_problem}"] = None
        self._began_at = 0.0
        self._began = 0
        self._limit = StackLimit()
        self._next_snapshot_at = 0.0

    def begin(self) -> None:
        """Take a snapshot to capture the stacks of waits in progress, and start counting."""
        with translating(self.target.pid):
            self._program.follow(self._limit.value)
            self._program.take_snapshot(self._samples)
            self._began = self._program.begin()
            self._began_at = time.time()
        self._limit.since = time.monotonic()
        self._next_snapshot_at = self._limit.since + _MIN_PAUSE_S

    def poll(self) -> None:
        """Read new samples, adjust the limit and take a snapshot if one is due."""
        now = time.monotonic()
        with translating(self.target.pid):
            self._samples.read()
            if self._limit.adjust(now, self._samples.taken.records):
                self._program.set_most(self._limit.value)
            if now >= self._next_snapshot_at:
                self._take_snapshot()

    def progress_text(self) -> str:
        """Return the number of records so far, such as ``1,812 records of waits``."""
        return f"{self._samples.taken.records:,} records of waits"

    def finish(self) -> Profile:
        """Detach everything and return the profile."""
        self._take_snapshot()
        with translating(self.target.pid):
            ended = self._program.end()
            settled = self._program.settle(self._samples, ended)
        rows = list(self._rows(settled.waits, {thread.tid: thread.comm for thread in settled.threads}))
        notes = missing_names(self.target, self._samples.modules, (row.thread.frames for row in rows))
        taken = self._samples.taken
        return Profile(
            target=self.target,
            unit=MICROSECONDS,
            began_at=self._began_at,
            seconds=(ended - self._began) / 1e9,
            rows=rows,
            records=taken.records,
            bytes=taken.bytes,
            lost=self._program.lost,
            threads=settled.threads,
            seen_ns=settled.seen_ns,
            notes=self._notes | dict.fromkeys(notes),
        )

    def _take_snapshot(self) -> None:
        """Capture the stacks of waits in progress. If that fails (the server may have ended), add a note."""
        used = time.thread_time()
        try:
            with translating(self.target.pid):
                self._program.take_snapshot(self._samples)
        except InnoscopeError as error:
            self._notes.setdefault(f"cannot take a snapshot of the waiting threads: {error.what}")
        used = time.thread_time() - used
        self._next_snapshot_at = time.monotonic() + max(_MIN_PAUSE_S, used / _SNAPSHOT_CPU_SHARE)

    def _rows(self, waits: Iterable[Waits], comms: dict[int, str]) -> Iterator[Row]:
        for one in waits:
            comm = comms.get(one.tid, "")
            if one.blocked_ns:
                thread = self._builder.blocked(one.tid, comm, one.place)
                yield Row(thread, round(one.blocked_ns / 1e3), one.count)
            if one.runnable_ns:
                thread = self._builder.runnable(one.tid, comm, one.place)
                yield Row(thread, round(one.runnable_ns / 1e3), one.count)


class StackLimit:
    """Limits the stacks per thread so that the total rate stays near MAX_STACKS_PER_S."""

    def __init__(self) -> None:
        self.value = _INITIAL_LIMIT
        self.since = 0.0
        self._records = 0

    def adjust(self, now: float, records: int) -> bool:
        """Adjust ``value`` and return whether it changed. ``records`` is the total so far, two per wait."""
        seconds = now - self.since
        if seconds < _ADJUST_S:
            return False
        rate = (records - self._records) / 2 / seconds
        self.since, self._records = now, records
        before = self.value
        if rate > MAX_STACKS_PER_S:
            self.value = max(1, int(self.value * MAX_STACKS_PER_S / rate))
        elif rate < MAX_STACKS_PER_S / 2:
            self.value = min(_INITIAL_LIMIT, self.value + 1)
        return self.value != before
