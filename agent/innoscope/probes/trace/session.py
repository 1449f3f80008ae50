"""Load, attach, read and detach the BPF programs of one trace."""

from __future__ import annotations

import struct
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from innoscope import _native
from innoscope.common.samples import Histogram
from innoscope.probes.trace.model import Values
from innoscope.target.native_errors import translating

if TYPE_CHECKING:
    from innoscope.probes.trace.model import TracedFunction, TraceOptions
    from innoscope.target.model import Target

#: ``enum counter`` of trace.bpf.c.
_COUNTERS: Final = ("hits", "calls", "other_values", "stacks_held_back", "stacks_lost")
#: Number of words in ``struct latency``: the sum, then the octaves.
_LATENCY_WORDS: Final = 41
_OCTAVES: Final = 65
_ONLY: Final = struct.pack("=I", 0)
#: Size of the ring buffer in bytes: enough for the stacks of a few intervals.
_RING_BYTES: Final = 16 << 20
#: Seconds between two reads of the call rate. The number of stacks per interval is limited.
INTERVAL_S: Final = 0.1
#: Maximum number of stacks per interval, as a multiple of the average: more than 1, to allow bursts of calls.
_SLACK: Final = 2
#: Kinds of stacks: from the server, and from calibration.
REAL, REHEARSED = 0, 1


@dataclass(frozen=True, slots=True)
class _Control:
    """The fields of ``struct control`` in trace.bpf.c."""

    tgid: int
    since: int = 0
    open: int = 0
    every: int = 0
    stretch_ns: int = round(INTERVAL_S * 1e9)
    most: int = 0
    kind: int = REAL

    def packed(self) -> bytes:
        words = (self.tgid, self.since, self.open, self.every, self.stretch_ns, self.most, self.kind)
        return struct.pack("=7Q", *words)


@dataclass(frozen=True, slots=True)
class TraceCounts:
    """The counts in the maps since the maps were created."""

    counters: tuple[int, ...]
    latency: tuple[int, ...]
    octaves: tuple[int, ...]

    def counter(self, name: str) -> int:
        """Return the counter ``name``: hits, calls, other_values, stacks_held_back or stacks_lost."""
        return self.counters[_COUNTERS.index(name)]

    def since(self, earlier: TraceCounts) -> TraceCounts:
        """Return the increase since earlier counts."""
        return TraceCounts(
            _minus(self.counters, earlier.counters),
            _minus(self.latency, earlier.latency),
            _minus(self.octaves, earlier.octaves),
        )


def _minus(now: tuple[int, ...], before: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(value - other for value, other in zip(now, before, strict=True))


class TraceSession:
    """The programs and probes of a trace. ``close``, or any exit of this process, detaches everything.

    Raise NoRights if we are not allowed to trace the server, KernelUnable if the kernel does not support
    this, or NoSuchProcess if the server has exited.
    """

    def __init__(self, target: Target, chosen: TracedFunction, options: TraceOptions, *, timed: bool) -> None:
        self.target = target
        self.has_stacks = options.callers
        self._chosen, self._options, self._timed = chosen, options, timed
        with translating(target.pid):
            self._programs = _native.TracePrograms(
                argument=options.argument,
                bits=options.bits,
                timed=timed,
                ring_bytes=_RING_BYTES if options.callers else None,
            )
        self._probes: list[_native.Uprobe] = []
        self._maps = self._open_maps()
        self._control = _Control(target.pid)
        self._baseline: TraceCounts | None = None

    def _open_maps(self) -> dict[str, _native.BpfMap]:
        open_map = self._programs.map
        return {
            "control": _native.BpfMap(open_map("control"), words=7),
            "counters": _native.BpfMap(open_map("counters"), per_cpu=True),
            "latencies": _native.BpfMap(open_map("latencies"), words=_LATENCY_WORDS, per_cpu=True),
            "values": _native.BpfMap(open_map("values"), key_bytes=8, per_cpu=True),
            "value_octaves": _native.BpfMap(open_map("value_octaves"), per_cpu=True),
        }

    @property
    def ring(self) -> int:
        """Return the descriptor of the ring buffer with stacks."""
        return self._programs.map("samples")

    @property
    def calibration_programs(self) -> tuple[int, int]:
        """Return the descriptors of the entry program and the return program."""
        return self._programs.program("trace_enter"), self._programs.program("trace_leave")

    def _set(self, **changes: int) -> None:
        self._control = replace(self._control, **changes)
        self._maps["control"].update(_ONLY, self._control.packed())

    def count_in(self, pid: int) -> None:
        """Restrict counting to one process: the server, or this process during calibration."""
        self._set(tgid=pid, since=time.monotonic_ns(), open=1)

    def sample_all(self) -> None:
        """Copy the stack of every call, to measure the cost of copying."""
        self._set(every=1, most=1 << 32, kind=REHEARSED)

    def sample(self, stacks_per_s: float, rate: float = 0.0) -> None:
        """Copy ``stacks_per_s`` stacks per second (0: none), given the ``rate`` of calls per second."""
        every = max(1, round(rate / stacks_per_s)) if stacks_per_s else 0
        self._set(every=every, most=max(1, round(_SLACK * stacks_per_s * INTERVAL_S)), kind=REAL)

    def reset(self) -> None:
        """Stop counting until ``start_counting``. Exclude the counts so far, which come from calibration."""
        self.stop_counting()
        self._baseline = self._raw()
        for key in self._maps["values"].entries():
            self._maps["values"].delete(key)

    def attach(self, *, on_return: bool = False) -> None:
        """Attach to all copies. Call this for entries first: a return without its entry is not counted."""
        program = self.calibration_programs[on_return]
        with translating(self.target.pid):
            for place in self._chosen.places:
                probe = _native.Uprobe(
                    program, self._chosen.path, place.offset, self.target.pid, on_return=on_return
                )
                self._probes.append(probe)

    def start_counting(self) -> None:
        """Count hits as calls from now on."""
        self._set(since=time.monotonic_ns(), open=1)

    def stop_counting(self) -> None:
        """Stop counting. Call it before ``detach``, which is slow."""
        self._set(open=0)

    def detach(self) -> None:
        """Detach all probes, return probes first."""
        probes, self._probes = self._probes[::-1], []
        _native.detach_all(probes)

    def close(self) -> None:
        """Detach everything, and close the programs and maps."""
        self.detach()
        self._programs.close()

    def read(self) -> TraceCounts:
        """Return the counts, excluding those from calibration."""
        raw = self._raw()
        return raw.since(self._baseline) if self._baseline else raw

    def _raw(self) -> TraceCounts:
        [latency] = self._maps["latencies"].array(1)
        return TraceCounts(
            tuple(count for [count] in self._maps["counters"].array(len(_COUNTERS))),
            tuple(latency),
            tuple(count for [count] in self._maps["value_octaves"].array(_OCTAVES)),
        )

    def hits(self) -> int:
        """Return the number of hits, excluding those from calibration. This is faster than ``read``."""
        [[hits]] = self._maps["counters"].array(1)
        return hits - (self._baseline.counter("hits") if self._baseline else 0)

    def latency(self, counts: TraceCounts) -> Histogram | None:
        """Return the latency of calls, or None if there are no return probes."""
        if not self._timed:
            return None
        total, *buckets = counts.latency
        return Histogram(tuple(buckets), total)

    def values(self, counts: TraceCounts) -> Values | None:
        """Return the values of the traced argument, or None if no argument is traced."""
        if self._options.argument is None:
            return None
        entries = self._maps["values"].entries()
        values = {struct.unpack("=Q", key)[0]: count for key, [count] in entries.items()}
        return Values(self._options.argument, values, counts.counter("other_values"), counts.octaves)
