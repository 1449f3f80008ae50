"""Describe one probe to the user."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from innoscope.probes.governor_retry import Failures
    from innoscope.probes.state import State


@dataclass(slots=True)  # not frozen, for speed: a scrape creates dozens per server
class ProbeReport:
    """The status of one probe. ``reason`` is why it is not attached; ``note`` is what its counts omit."""

    probe: str
    family: str
    state: str  # attached, sampled, off (over budget or governor failed), refused or missing
    symbols: tuple[str, ...] = ()
    hits: int = 0
    hits_per_second: float = 0.0
    cost_seconds: float = 0.0
    cost_ratio: float = 0.0
    duty: float = 0.0
    reason: str | None = None
    remedy: str | None = None
    instead: str | None = None
    note: str | None = None


def report_of(state: State, *, budget: float, cpus: float, failures: Failures) -> ProbeReport:
    """Return the report of a probe whose function was found."""
    point = state.point
    reason = point.problem
    if reason:
        status = "refused"
    elif failures.why is not None:
        status, reason = "off", f"governor failed: {failures}"
    elif state.duty >= 1:
        status = "attached"
    elif state.duty > 0:
        status = "sampled"
    else:
        status, reason = "off", f"over the budget of {budget:.1%}: {state.rate:,.0f} hits per second"
    return ProbeReport(
        probe=point.name,
        family=point.placed.probe.family,
        state=status,
        symbols=tuple(place.symbol for place in point.placed.places),
        hits=state.hits,
        hits_per_second=state.rate,
        cost_seconds=state.cost_s,
        cost_ratio=state.rate * state.duty * state.hit_cost / cpus,
        duty=0.0 if reason else state.duty,
        reason=reason,
        note=point.placed.note,
    )
