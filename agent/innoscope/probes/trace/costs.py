"""Estimate what a trace costs the server, from the measured cost of a hit."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from innoscope import _native
from innoscope.probes.calibration import BUSY_FACTOR, calibrate, ns_per_call, probe_own_function
from innoscope.probes.catalog import ENTER, LEAVE
from innoscope.probes.governor import usable_cpus
from innoscope.probes.trace.model import Cost
from innoscope.target.native_errors import translating

if TYPE_CHECKING:
    from innoscope.probes.trace.model import TracedFunction
    from innoscope.probes.trace.session import TraceSession

_S: Final = 1e9


def measure(session: TraceSession, chosen: TracedFunction, *, timed: bool) -> Cost:
    """Measure the cost of the loaded programs on our own functions.

    The measurement takes about 50 ms of CPU time, and more if stacks are copied. Raise NoRights or
    KernelUnable as ``calibrate`` does.
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


def _stack_cost(session: TraceSession, entry_ns: float) -> float:
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
