"""Profile off-CPU time: exact times from scheduler events, and stacks from sampled waits."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from innoscope.common.errors import InnoscopeError
from innoscope.sampling.missing_names import missing_names
from innoscope.sampling.profile.model import MICROSECONDS, Profile, ProfileRow
from innoscope.sampling.profile.naming import ThreadBuilder
from innoscope.sampling.profile.setup import Naming, open_samples
from innoscope.sampling.profile.wait_events import open_events
from innoscope.target.native_errors import translating

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from innoscope._native import Waits
    from innoscope.sampling.profile.wait_events import Opened
    from innoscope.target.model import Target

#: Share of one CPU that snapshots may use, and minimum seconds between two of them. Snapshots capture the
#: stacks of long waits that were not sampled when they began. A snapshot of 30 threads takes 0.4 ms of CPU
#: time. With an interval of 20 ms instead of 50 ms, waits without a stack fell from 1.2 to 0.8 % of the time
#: (16 committing clients, MariaDB 11.4.5, load average 9 on 2 CPUs).
_SNAPSHOT_CPU_SHARE: Final = 0.02
_MIN_PAUSE_S: Final = 0.02


class OffCpuProfiler:
    """A profiler of one server's off-CPU time.

    Raise NoRights if we are not allowed to profile the server, KernelUnable if the kernel does not support
    this, or NoSuchProcess if the server has exited.
    """

    def __init__(self, target: Target, naming: Naming | None = None, opened: Opened | None = None) -> None:
        naming = naming or Naming()
        self.target = target
        with translating(target.pid):
            self._events, notes = opened or open_events(target, kernel=naming.kernel)
        self._samples, more = open_samples(target, self._events.ring, naming)
        self._builder = ThreadBuilder(target.pid, self._samples)
        self._notes = dict.fromkeys((*notes, *more))
        if problem := self._events.snapshot_problem:
            self._notes[f"no stacks of threads that are not running: {problem}"] = None
        self._began_at = 0.0
        self._began = 0
        self._next_snapshot_at = 0.0

    def begin(self) -> None:
        """Take a snapshot to capture the stacks of waits in progress, and start counting."""
        with translating(self.target.pid):
            self._began = self._events.begin(self._samples)
            self._began_at = time.time()
        self._next_snapshot_at = time.monotonic() + _MIN_PAUSE_S

    def poll(self) -> None:
        """Read new samples, and take a snapshot if one is due."""
        with translating(self.target.pid):
            self._events.read(self._samples)
        if time.monotonic() >= self._next_snapshot_at:
            self._take_snapshot()

    def progress_text(self) -> str:
        """Return the number of records so far, such as ``1,812 records of waits``."""
        return f"{self._samples.taken.records:,} records of waits"

    def finish(self) -> Profile:
        """Detach everything and return the profile."""
        self._take_snapshot()
        with translating(self.target.pid):
            ended = self._events.end()
            settled = self._events.settle(self._samples, ended)
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
            method=self._events.method,
            lost=self._events.lost,
            threads=settled.threads,
            seen_ns=settled.seen_ns,
            notes=self._notes | dict.fromkeys((*self._events.final_notes(), *self._samples.notes, *notes)),
        )

    def _take_snapshot(self) -> None:
        """Capture the stacks of waits in progress. If that fails (the server may have exited), add a note."""
        used = time.thread_time()
        try:
            with translating(self.target.pid):
                self._events.take_snapshot(self._samples)
        except InnoscopeError as error:
            self._notes.setdefault(f"cannot take a snapshot of the waiting threads: {error.what}")
        used = time.thread_time() - used
        self._next_snapshot_at = time.monotonic() + max(_MIN_PAUSE_S, used / _SNAPSHOT_CPU_SHARE)

    def _rows(self, waits: Iterable[Waits], comms: dict[int, str]) -> Iterator[ProfileRow]:
        for one in waits:
            comm = comms.get(one.tid, "")
            if one.blocked_ns:
                thread = self._builder.blocked(one.tid, comm, one.place)
                yield ProfileRow(thread, round(one.blocked_ns / 1e3), one.count)
            if one.runnable_ns:
                thread = self._builder.runnable(one.tid, comm, one.place)
                yield ProfileRow(thread, round(one.runnable_ns / 1e3), one.count)
