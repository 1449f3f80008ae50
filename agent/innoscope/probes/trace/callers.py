"""Collect the stacks of callers. The BPF program copies them; the Rust core unwinds and symbolizes them."""

from __future__ import annotations

import time
from collections import Counter
from typing import TYPE_CHECKING, Final

from innoscope import _native
from innoscope.probes.trace.session import REAL
from innoscope.sampling.fold import SampleType, StackReport, Unit
from innoscope.sampling.missing_names import missing_names
from innoscope.sampling.model import Trust
from innoscope.target.native_errors import translating

if TYPE_CHECKING:
    from innoscope.target.model import Target

CALLS: Final = Unit("calls", SampleType("calls", "count"))
#: The trust level that the Rust core assigns to a stack copied during the call. Such a stack is reported as
#: exact.
_SOUND: Final = Trust.ON_CPU


class Callers:
    """A reader of the stacks in a ring buffer.

    Raise InnoscopeError if the Rust core reports an error, as ``translating`` does.
    """

    def __init__(self, target: Target, ring: int) -> None:
        self._target = target
        self._began = time.time()
        with translating(target.pid):
            self._samples: _native.Samples = _native.Samples(target.pid, ring)

    def drain(self) -> None:
        """Read all stacks from the ring buffer."""
        with translating(self._target.pid):
            self._samples.read()

    def report(self, headline: str) -> StackReport:
        """Return the folded stacks, each weighted by the number of calls since the previous copied stack."""
        report = StackReport(self._target, unit=CALLS)
        report.headline = headline
        report.snapshots, report.method = 1, "bpf"
        report.started_at, report.ended_at = self._began, time.time()
        stacks: Counter[tuple[int, Trust]] = Counter()
        for one in self._samples.counts():
            if one.kind == REAL:
                stacks[one.place.stack, Trust(one.place.trust)] += one.weight
        frames = {stack: self._samples.frames(stack) for stack, _ in stacks}
        for (stack, trust), calls in stacks.items():
            found = frames[stack]
            level = Trust.EXACT if trust is _SOUND else trust
            report.count("calls", level, tuple([frame.label for frame in found]), found, calls)
        notes = missing_names(self._target, self._samples.modules, frames.values())
        report.notes |= dict.fromkeys((*self._samples.notes, *notes))
        return report

    @property
    def taken(self) -> int:
        """Return the number of stacks read so far, excluding those from calibration."""
        return sum(one.records for one in self._samples.counts() if one.kind == REAL)
