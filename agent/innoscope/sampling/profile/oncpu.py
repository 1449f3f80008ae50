"""Profile CPU time: sample a server's running threads with software clock events."""

from __future__ import annotations

import os
import time
from collections import Counter
from typing import TYPE_CHECKING, Final

from innoscope import _native
from innoscope.common.errors import KernelUnable
from innoscope.sampling.classify import label
from innoscope.sampling.missing_names import missing_names
from innoscope.sampling.profile.model import SAMPLES, Profile, ProfileRow
from innoscope.sampling.profile.naming import ThreadBuilder
from innoscope.sampling.profile.setup import Naming, open_samples, perf_ring_bytes, ring_bytes
from innoscope.target.container import require_host_pids
from innoscope.target.native_errors import failure, translating
from innoscope.target.proc import ProcFs

if TYPE_CHECKING:
    from innoscope.target.model import Target

_TICKS = os.sysconf("SC_CLK_TCK")
#: Kinds of NativeError after which perf events are used instead of BPF.
_NO_BPF: Final = frozenset({"rights", "bpf"})


def open_program(
    target: Target, frequency: float, *, kernel: bool
) -> tuple[_native.OnCpu | _native.PerfOnCpu, tuple[str, ...]]:
    """Return a BPF program or, if BPF is unavailable, perf events to sample the target; also return notes.

    Raise NativeError if neither works, with the kind gone, rights, bpf or perf.
    """
    period_ns = int(1e9 / frequency)
    try:
        require_host_pids("profile")
        size = ring_bytes(frequency)
        program = _native.OnCpu(target.pid, target.start_time, period_ns, kernel=kernel, ring_bytes=size)
        return program, ()
    except KernelUnable as error:
        reason = error.what
    except _native.NativeError as error:
        if failure(error).kind not in _NO_BPF:
            raise
        reason = failure(error).detail
    size = perf_ring_bytes(frequency, os.cpu_count() or 1)
    try:
        events = _native.PerfOnCpu(target.pid, period_ns, kernel=kernel, ring_bytes=size)
    except _native.NativeError as error:
        found = failure(error)
        raise _native.NativeError(found.kind, f"{reason}; without BPF: {found.detail}") from error
    return events, _notes(events, reason, period_ns)


def _notes(events: _native.PerfOnCpu, reason: str, period_ns: int) -> tuple[str, ...]:
    notes = [f"sampled by perf events, not by BPF: {reason}"]
    if not events.per_cpu:
        notes.append(
            "each thread had its own clock event, which makes context switches slower and misses threads "
            f"that ran for less than {period_ns / 1e6:.0f} ms on a CPU; CAP_PERFMON avoids this"
        )
    if not events.in_kernel:
        notes.append("time in the kernel was not sampled: that needs CAP_PERFMON")
    return tuple(notes)


class OnCpuProfiler:
    """A profiler of one server's CPU time, with ``frequency`` samples per second and CPU.

    Raise NoRights if we are not allowed to profile the server, KernelUnable if the kernel does not support
    this, or NoSuchProcess if the server has exited.
    """

    def __init__(self, target: Target, frequency: float = 99.0, naming: Naming | None = None) -> None:
        naming = naming or Naming()
        self.target = target
        self._period_ns = int(1e9 / frequency)
        with translating(target.pid):
            self._program, notes = open_program(target, frequency, kernel=naming.kernel)
            self._events = self._program if isinstance(self._program, _native.PerfOnCpu) else None
            ring = None if isinstance(self._program, _native.PerfOnCpu) else self._program.ring
        self._samples, more = open_samples(target, ring, naming)
        self._notes = (*notes, *more)
        self._builder = ThreadBuilder(target.pid, self._samples)
        self._began_at = self._began = self._cpu = self._last_cpu = 0.0

    def begin(self) -> None:
        """Start sampling."""
        self._began_at, self._began = time.time(), time.monotonic()
        self._cpu = self._last_cpu = self._cpu_seconds()
        with translating(self.target.pid):
            self._program.begin()

    def poll(self) -> None:
        """Read new samples."""
        with translating(self.target.pid):
            self._samples.read(self._events)
        self._last_cpu = max(self._last_cpu, self._cpu_seconds())  # the server may exit before ``finish``

    def progress_text(self) -> str:
        """Summarize the samples so far, such as ``812 samples: recovery 81 %, on CPU 12 %``."""
        waits: Counter[str] = Counter()
        comms = self._samples.comms()
        for one in self._samples.counts():
            waits[self._builder.running(one.tid, comms.get(one.tid, ""), one.place).wait] += one.records
        total = waits.total()
        most = ", ".join(f"{label(wait)} {100 * count / total:.0f} %" for wait, count in waits.most_common(2))
        return f"{total:,} samples" + (f": {most}" if most else "")

    def finish(self) -> Profile:
        """Detach everything and return the profile."""
        self._program.end()
        seconds = time.monotonic() - self._began
        self.poll()
        comms = self._samples.comms()
        rows = [
            ProfileRow(
                self._builder.running(one.tid, comms.get(one.tid, ""), one.place), one.records, one.records
            )
            for one in self._samples.counts()
        ]
        notes = missing_names(self.target, self._samples.modules, (row.thread.frames for row in rows))
        taken = self._samples.taken
        return Profile(
            target=self.target,
            unit=SAMPLES,
            began_at=self._began_at,
            seconds=seconds,
            rows=rows,
            records=taken.records,
            bytes=taken.bytes,
            method="bpf" if self._events is None else "perf",
            lost=self._program.lost,
            period_ns=self._period_ns,
            cpu_seconds=self._last_cpu - self._cpu,
            notes=dict.fromkeys((*self._notes, *self._samples.notes, *notes)),
        )

    def _cpu_seconds(self) -> float:
        """Return the server's CPU time so far in seconds; 0 if it has exited."""
        try:
            return ProcFs().cpu_ticks(self.target.pid) / _TICKS
        except OSError:
            return 0.0
