"""The two sources of wait events for off-CPU profiles: BPF programs and, without BPF, perf events."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

from innoscope import _native
from innoscope.common.errors import KernelUnable, NoRights
from innoscope.sampling.profile.setup import perf_ring_bytes
from innoscope.target.container import require_host_pids
from innoscope.target.native_errors import RUN_AS_ROOT, failure

if TYPE_CHECKING:
    from innoscope.target.model import Target

#: Target number of stacks per second, for all threads together.
MAX_STACKS_PER_S: Final = 2000
#: The same for perf events, which copy 60 KB for each stack.
PERF_MAX_STACKS_PER_S: Final = 1000
#: Initial maximum number of stacks per thread in one window of 134 ms (WINDOW_NS in offcpu.bpf.c).
_INITIAL_LIMIT: Final = 12
_RING_BYTES: Final = 32 << 20
_ADJUST_S: Final = 0.25
_MIN_THREADS: Final = 16384
#: Kinds of NativeError after which perf events are used instead of BPF.
_NO_BPF: Final = frozenset({"rights", "bpf"})


class WaitEvents(Protocol):
    """A source of wait events. The times are in ns of CLOCK_MONOTONIC."""

    @property
    def method(self) -> str:
        """Return ``bpf`` or ``perf``."""

    @property
    def ring(self) -> int | None:
        """Return the descriptor of the BPF ring buffer, for ``Samples``."""

    @property
    def lost(self) -> int:
        """Return the number of records and events lost because a ring buffer or a map was full."""

    @property
    def snapshot_problem(self) -> str | None:
        """Return why snapshots of waiting threads cannot be taken; None if they can."""

    def begin(self, samples: _native.Samples) -> int:
        """Take a snapshot to capture the stacks of waits in progress, start counting and return the time."""

    def read(self, samples: _native.Samples) -> None:
        """Process new records, and adjust the limit on stacks."""

    def take_snapshot(self, samples: _native.Samples) -> None:
        """Capture the stacks of waits in progress."""

    def end(self) -> int:
        """Stop counting and return the time."""

    def settle(self, samples: _native.Samples, ended: int) -> _native.Settled:
        """Return the waits and threads up to the time ``ended``, which ``end`` returned."""

    def final_notes(self) -> tuple[str, ...]:
        """Return notes on the complete profile."""


Opened: TypeAlias = "tuple[WaitEvents, tuple[str, ...]]"


def open_events(target: Target, *, kernel: bool) -> Opened:
    """Open the BPF events or, if BPF is unavailable, the perf events. Return them, and notes.

    Raise NoRights or KernelUnable if perf events are unavailable, too. Raise NativeError for other failures,
    for example if the server has exited.
    """
    try:
        require_host_pids("profile")
        return BpfEvents(target, kernel=kernel), ()
    except KernelUnable as error:
        reason = error.what
    except _native.NativeError as error:
        if failure(error).kind not in _NO_BPF:
            raise
        reason = failure(error).detail
    try:
        events = PerfEvents(target, kernel=kernel)
    except _native.NativeError as error:
        found = failure(error)
        what = f"cannot profile off-CPU time: {reason}; without BPF: {found.detail}"
        if found.kind == "rights":
            raise NoRights(what, remedy=RUN_AS_ROOT) from error
        if found.kind == "perf":
            raise KernelUnable(what, remedy="innoscope doctor shows why") from error
        raise
    return events, events.notes(reason)


class BpfEvents:
    """Scheduler events from BPF programs, including wakeups."""

    method = "bpf"

    def __init__(self, target: Target, *, kernel: bool) -> None:
        self._program = _native.OffCpu(
            target.pid,
            target.start_time,
            kernel=kernel,
            ring_bytes=_RING_BYTES,
            most_threads=max(_MIN_THREADS, 4 * target.threads),
        )
        self.ring = self._program.ring
        self.snapshot_problem = self._program.snapshot_problem
        self._limit = StackLimit()

    @property
    def lost(self) -> int:
        """Return the number of records and events lost because the ring buffer or a map was full."""
        return self._program.lost

    def begin(self, samples: _native.Samples) -> int:
        """Take a snapshot to capture the stacks of waits in progress, start counting and return the time."""
        self._program.follow(self._limit.value)
        self._program.take_snapshot(samples)
        began = self._program.begin()
        self._limit.since = time.monotonic()
        return began

    def read(self, samples: _native.Samples) -> None:
        """Process new records, and adjust the limit on stacks."""
        samples.read()
        if self._limit.adjust(time.monotonic(), samples.taken.records):
            self._program.set_most(self._limit.value)

    def take_snapshot(self, samples: _native.Samples) -> None:
        """Capture the stacks of waits in progress."""
        self._program.take_snapshot(samples)

    def end(self) -> int:
        """Stop counting and return the time."""
        return self._program.end()

    def settle(self, samples: _native.Samples, ended: int) -> _native.Settled:
        """Return the waits and threads up to the time ``ended``, which ``end`` returned."""
        return self._program.settle(samples, ended)

    def final_notes(self) -> tuple[str, ...]:
        """Return no notes: the times are exact even if records were lost."""
        return ()


class PerfEvents:
    """Context switches from perf events, without wakeups."""

    method = "perf"
    ring = None

    def __init__(self, target: Target, *, kernel: bool) -> None:
        self._kernel = kernel
        size = perf_ring_bytes(PERF_MAX_STACKS_PER_S, os.cpu_count() or 1)
        self._events = _native.PerfOffCpu(
            target.pid, kernel=kernel, most=PERF_MAX_STACKS_PER_S, ring_bytes=size
        )
        self.snapshot_problem = self._events.snapshot_problem

    def notes(self, reason: str) -> tuple[str, ...]:
        """Return notes on how the profile differs from one with BPF. ``reason`` is why BPF is not used."""
        notes = [
            f"measured by perf events, not by BPF: {reason}",
            "without BPF, wakeups are not recorded: the time between a wakeup and running on a CPU counts as "
            "blocked; only the time after a preemption counts as ready to run",
        ]
        if not self._events.per_cpu:
            notes.append(
                "all stacks come from snapshots: the shares of short waits are estimates, and the stacks of "
                "threads that are ready to run are unknown; CAP_PERFMON avoids this"
            )
        if self._kernel:
            notes.append("kernel functions are unknown where the stack comes from a snapshot")
        return tuple(notes)

    @property
    def lost(self) -> int:
        """Return the number of records lost because a ring buffer was full."""
        return self._events.lost

    def begin(self, samples: _native.Samples) -> int:
        """Start counting, take a snapshot to capture the stacks of waits in progress, and return the time."""
        began = self._events.begin()
        self._events.take_snapshot(samples)
        return began

    def read(self, samples: _native.Samples) -> None:
        """Process new records, and adapt the sampling period to the rate of context switches."""
        self._events.read(samples)

    def take_snapshot(self, samples: _native.Samples) -> None:
        """Capture the stacks of waits in progress."""
        self._events.take_snapshot(samples)

    def end(self) -> int:
        """Stop counting and return the time."""
        return self._events.end()

    def settle(self, samples: _native.Samples, ended: int) -> _native.Settled:
        """Return the waits and threads up to the time ``ended``, which ``end`` returned."""
        del ended
        return self._events.settle(samples)

    def final_notes(self) -> tuple[str, ...]:
        """Return a note if records of context switches were lost."""
        if not (lost := self._events.lost_switches):
            return ()
        return (f"{lost:,} records of context switches were lost: the times are inexact",)


class StackLimit:
    """The limit on stacks per thread and window, which keeps the total rate near ``stacks_per_s``."""

    def __init__(self, stacks_per_s: float = MAX_STACKS_PER_S, initial: int = _INITIAL_LIMIT) -> None:
        self._stacks_per_s, self._initial = stacks_per_s, initial
        self.value = initial
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
        if rate > self._stacks_per_s:
            self.value = max(1, int(self.value * self._stacks_per_s / rate))
        elif rate < self._stacks_per_s / 2:
            self.value = min(self._initial, self.value + 1)
        return self.value != before
