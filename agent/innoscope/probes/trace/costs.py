"""What a trace costs the server: reckoned from what a hit was measured to cost."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from innoscope import _native
from innoscope.probes.calibration import BUSY, calibrate, per_call, probe_own
from innoscope.probes.catalog import ENTER, LEAVE
from innoscope.probes.governor import usable_cpus
from innoscope.target.native_errors import translating

if TYPE_CHECKING:
    from innoscope.probes.trace.model import Chosen
    from innoscope.probes.trace.session import Session

#: Stacks a second, at most; few enough to be read at leisure, and shares are true to 3 points after 4 s.
MOST_STACKS: Final = 250.0
_FEWEST_STACKS: Final = 10.0
#: The part of the budget that stacks may use.
_STACKS_PART: Final = 0.5
_S: Final = 1e9


@dataclass(frozen=True, slots=True)
class Cost:
    """Seconds that a busy server loses by one call, by its return, and by taking its stack besides.

    ``weight``: a call counts so many times in the budget. ``cpus`` are those that the server may use.
    """

    call_s: float
    stack_s: float
    cpus: float
    weight: int = 1
    return_s: float = 0.0  # in ``call_s`` where there is a return probe

    @property
    def without_return(self) -> Cost:
        """The same for calls that are not timed."""
        return replace(self, call_s=self.call_s - self.return_s, return_s=0.0)

    def share(self, rate: float, stacks: float = 0.0) -> float:
        """Of the server's CPUs, for so many calls and stacks a second, as the budget counts it."""
        return (rate * self.call_s * self.weight + stacks * self.stack_s) / self.cpus

    def spent(self, hits: float, stacks: float, seconds: float) -> float:
        """Seconds of CPU, out of so many on the clock: a server cannot lose more than it has."""
        return min(hits * self.call_s + stacks * self.stack_s, seconds * self.cpus)

    def stacks_a_second(self, budget: float) -> float:
        """As many as the budget has room for."""
        if not self.stack_s:
            return MOST_STACKS
        return min(MOST_STACKS, max(_FEWEST_STACKS, _STACKS_PART * budget * self.cpus / self.stack_s))


def measure(session: Session, chosen: Chosen, *, timed: bool) -> Cost:
    """With the very programs, on functions of our own: 50 ms of one CPU. Raises NoRights or KernelUnable."""
    cost = calibrate(session)
    at = (ENTER, LEAVE) if timed else (ENTER,)
    return Cost(
        call_s=cost.of(at, chosen.places),
        stack_s=_stack_cost(session, cost.entry_ns) / _S if session.has_stacks else 0.0,
        cpus=usable_cpus(session.target.pid),
        weight=chosen.weight,
        return_s=cost.return_ns / _S if timed else 0.0,
    )


def _stack_cost(session: Session, entry_ns: float) -> float:
    """Nanoseconds that copying a stack takes beside the hit."""
    enter, _ = session.calibration_programs
    session.count_in(os.getpid())
    session.rehearse()
    probes = []
    try:
        with translating(os.getpid()):
            plain = per_call(stepped=False)
            probes.append(probe_own(enter, _native.CALIBRATION_FUNCTION, on_return=False))
            both = per_call(stepped=False)
    finally:
        _native.detach_all(probes)
        session.sample(0)
        session.count_in(session.target.pid)
    return max(0.0, BUSY * (both - plain) - entry_ns)
