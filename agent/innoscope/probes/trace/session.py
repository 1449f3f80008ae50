"""The programs of one trace: loaded once, put on, read, taken off."""

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
    from innoscope.probes.trace.model import Chosen, Wanted
    from innoscope.target.model import Target

#: ``enum counter`` of trace.bpf.c.
_COUNTERS: Final = ("hits", "calls", "other_values", "stacks_held_back", "stacks_lost")
#: Words of ``struct latency``: the sum, then the octaves.
_LATENCY_WORDS: Final = 41
_OCTAVES: Final = 65
_ONLY: Final = struct.pack("=I", 0)
#: Room for what comes in a few stretches of time.
_RING_BYTES: Final = 16 << 20
#: Stacks are limited in stretches of time as long as the pause between two looks at the rate.
STRETCH_S: Final = 0.1
#: Twice the share of a stretch: calls come in bursts.
_SLACK: Final = 2
#: Kinds of stacks: the server's, and those of a rehearsal.
REAL, REHEARSED = 0, 1


@dataclass(frozen=True, slots=True)
class _Control:
    """``struct control`` of trace.bpf.c."""

    tgid: int
    since: int = 0
    open: int = 0
    every: int = 0
    stretch_ns: int = round(STRETCH_S * 1e9)
    most: int = 0
    kind: int = REAL

    def packed(self) -> bytes:
        words = (self.tgid, self.since, self.open, self.every, self.stretch_ns, self.most, self.kind)
        return struct.pack("=7Q", *words)


@dataclass(frozen=True, slots=True)
class Reading:
    """What the maps hold, since they were made."""

    counters: tuple[int, ...]
    latency: tuple[int, ...]
    octaves: tuple[int, ...]

    def counter(self, name: str) -> int:
        """hits, calls, other_values, stacks_held_back or stacks_lost."""
        return self.counters[_COUNTERS.index(name)]

    def since(self, zero: Reading) -> Reading:
        """What came after that one."""
        return Reading(
            _minus(self.counters, zero.counters),
            _minus(self.latency, zero.latency),
            _minus(self.octaves, zero.octaves),
        )


def _minus(now: tuple[int, ...], before: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(value - other for value, other in zip(now, before, strict=True))


class Session:
    """Closing it (or dying, in whatever way) takes everything off.

    Raises NoRights, KernelUnable or NoSuchProcess.
    """

    def __init__(self, target: Target, chosen: Chosen, wanted: Wanted, *, timed: bool) -> None:
        self.target = target
        self.has_stacks = wanted.callers
        self._chosen, self._wanted, self._timed = chosen, wanted, timed
        with translating(target.pid):
            self._programs = _native.TracePrograms(
                argument=wanted.argument,
                bits=wanted.bits,
                timed=timed,
                ring_bytes=_RING_BYTES if wanted.callers else None,
            )
        self._probes: list[_native.Uprobe] = []
        self._maps = self._open_maps()
        self._control = _Control(target.pid)
        self._zero: Reading | None = None

    def _open_maps(self) -> dict[str, _native.BpfMap]:
        made = self._programs.map
        return {
            "control": _native.BpfMap(made("control"), words=7),
            "counters": _native.BpfMap(made("counters"), per_cpu=True),
            "latencies": _native.BpfMap(made("latencies"), words=_LATENCY_WORDS, per_cpu=True),
            "values": _native.BpfMap(made("values"), key_bytes=8, per_cpu=True),
            "value_octaves": _native.BpfMap(made("value_octaves"), per_cpu=True),
        }

    @property
    def ring(self) -> int:
        """The descriptor of the ring buffer with stacks."""
        return self._programs.map("samples")

    @property
    def calibration_programs(self) -> tuple[int, int]:
        """Descriptors of the programs for an entry and for a return."""
        return self._programs.program("trace_enter"), self._programs.program("trace_leave")

    def _set(self, **changes: int) -> None:
        self._control = replace(self._control, **changes)
        self._maps["control"].update(_ONLY, self._control.packed())

    def count_in(self, pid: int) -> None:
        """Count in this process and no other: the server, or ourselves for calibration."""
        self._set(tgid=pid, since=time.monotonic_ns(), open=1)

    def rehearse(self) -> None:
        """Take the stack of every call, for what that costs."""
        self._set(every=1, most=1 << 32, kind=REHEARSED)

    def sample(self, stacks_a_second: float, rate: float = 0.0) -> None:
        """From now on take so many stacks of so many calls a second; 0 for none."""
        every = max(1, round(rate / stacks_a_second)) if stacks_a_second else 0
        self._set(every=every, most=max(1, round(_SLACK * stacks_a_second * STRETCH_S)), kind=REAL)

    def forget(self) -> None:
        """What was counted until now, for calibration, is not the server's; nothing counts until ``open``."""
        self.stop()
        self._zero = self._raw()
        for key in self._maps["values"].entries():
            self._maps["values"].delete(key)

    def attach(self, *, on_return: bool = False) -> None:
        """Put the probes on all copies: on their entries first, a return without its entry is not counted."""
        program = self.calibration_programs[on_return]
        with translating(self.target.pid):
            for place in self._chosen.places:
                probe = _native.Uprobe(
                    program, self._chosen.path, place.offset, self.target.pid, on_return=on_return
                )
                self._probes.append(probe)

    def open(self) -> None:
        """From now on hits are calls that count."""
        self._set(since=time.monotonic_ns(), open=1)

    def stop(self) -> None:
        """Nothing counts any more: taking the probes off takes the kernel a while."""
        self._set(open=0)

    def detach(self) -> None:
        """Take all probes off, returns first."""
        probes, self._probes = self._probes[::-1], []
        _native.detach_all(probes)

    def close(self) -> None:
        """Take everything off and give up programs and maps."""
        self.detach()
        self._programs.close()

    def read(self) -> Reading:
        """What was counted for the server."""
        raw = self._raw()
        return raw.since(self._zero) if self._zero else raw

    def _raw(self) -> Reading:
        [latency] = self._maps["latencies"].array(1)
        return Reading(
            tuple(count for [count] in self._maps["counters"].array(len(_COUNTERS))),
            tuple(latency),
            tuple(count for [count] in self._maps["value_octaves"].array(_OCTAVES)),
        )

    def hits(self) -> int:
        """How often the function was called since the first probe was put on it; quick."""
        [[hits]] = self._maps["counters"].array(1)
        return hits - (self._zero.counter("hits") if self._zero else 0)

    def latency(self, reading: Reading) -> Histogram | None:
        """How long calls took; None where no return probe could go."""
        if not self._timed:
            return None
        total, *buckets = reading.latency
        return Histogram(tuple(buckets), total)

    def values(self, reading: Reading) -> Values | None:
        """The values of the wanted argument."""
        if self._wanted.argument is None:
            return None
        entries = self._maps["values"].entries()
        counts = {struct.unpack("=Q", key)[0]: count for key, [count] in entries.items()}
        return Values(self._wanted.argument, counts, reading.counter("other_values"), reading.octaves)
