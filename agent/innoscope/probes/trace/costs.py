"""Estimate what a trace costs the server, from the measured cost of a hit."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from innoscope import _native
from innoscope.probes.calibration import BUSY_FACTOR, calibrate, ns_per_call, probe_own_function
from innoscope.probes.catalog import ENTER, LEAVE
from innoscope.probes.governor import usable_cpus
from innoscope.target.native_errors import translating

if TYPE_CHECKING:
    from innoscope.probes.trace.model import TracedFunction
    from innoscope.probes.trace.session import Session

#: Maximum number of stacks per second: few enough to be read in time, but enough for shares that are accurate
#: to 3 percentage points after 4 s.
MAX_STACKS_PER_S: Final = 250.0
MIN_STACKS_PER_S: Final = 10.0
#: The share of the budget that stacks may use.
_STACKS_SHARE: Final = 0.5
_S: Final = 1e9


@dataclass(frozen=True, slots=True)
class Cost:
    """CPU seconds that a busy server loses per call (``call_s``), and in addition per stack (``stack_s``).

    ``weight`` is the factor by which a hit's cost counts against the budget.
    ``cpus`` is the number of CPUs that the server may use.
    """

    call_s: float
    stack_s: float
    cpus: float
    weight: int = 1
    return_s: float = 0.0  # the part of ``call_s`` that a return probe causes

    @property
    def without_return(self) -> Cost:
        """Return the cost of calls without a return probe."""
        return replace(self, call_s=self.call_s - self.return_s, return_s=0.0)

    def share(self, rate: float, stacks: float = 0.0) -> float:
        """Return the weighted share of the server's CPUs that ``rate`` calls/s and ``stacks``/s cost."""
        return (rate * self.call_s * self.weight + stacks * self.stack_s) / self.cpus

    def spent(self, hits: float, stacks: float, seconds: float) -> float:
        """Return the CPU seconds that the trace costs in ``seconds``, capped at the time of all CPUs."""
        return min(hits * self.call_s + stacks * self.stack_s, seconds * self.cpus)

    def stacks_per_second(self, budget: float) -> float:
        """Return the number of stacks per second that the budget allows."""
        if not self.stack_s:
            return MAX_STACKS_PER_S
        affordable = _STACKS_SHARE * budget * self.cpus / self.stack_s
        return min(MAX_STACKS_PER_S, max(MIN_STACKS_PER_S, affordable))


def measure(session: Session, chosen: TracedFunction, *, timed: bool) -> Cost:
    """Measure the cost of the loaded programs on our own functions.

    The measurement takes 50 ms of CPU time. Raise NoRights or KernelUnable.
    """
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
    """Return the nanoseconds that copying a stack adds to a hit."""
    enter, _ = session.calibration_programs
    session.count_in(os.getpid())
    session.sample_all()
    probes = []
    try:
        with translating(os.getpid()):
            plain = ns_per_call(stepped=False)
            probes.append(probe_own_function(enter, _native.CALIBRATION_FUNCTION, on_return=False))
            both = ns_per_call(stepped=False)
    finally:
        _native.detach_all(probes)
        session.sample(0)
        session.count_in(session.target.pid)
    return max(0.0, BUSY_FACTOR * (both - plain) - entry_ns)
