"""Compute the share of time for which each probe may be attached.

These are pure functions; the governor calls them every second. The cost of a probe is its hits per second
times the cost of one hit on this host. While the total cost is within the budget, all probes stay attached.
If it exceeds the budget, each of the most expensive probes gets a duty cycle: the share of the time for which
it is attached. The duty cycles are chosen so that all these probes cost the same. The other probes stay
attached. A probe that exceeds its own limit on hits per second gets a duty cycle in any case.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

#: Minimum duty cycle. A probe with a lower one would not yield a useful rate, so it is detached.
MIN_DUTY = 0.001
#: A duty cycle is increased only to 1, or by at least this factor, to avoid oscillation.
_SLACK = 1.25


@dataclass(frozen=True, slots=True)
class Load:
    """The load of one probe: hits/s while it is attached, CPU seconds per hit, and the limit on hits/s."""

    rate: float
    hit_cost: float
    limit: int | None = None

    @property
    def cost(self) -> float:
        """Return the CPU seconds per second that the probe would cost if it were always attached."""
        return self.rate * self.hit_cost


def duties(
    loads: Mapping[str, Load], *, budget: float, cpus: float, now: Mapping[str, float]
) -> dict[str, float]:
    """Return the duty cycle of each probe, from 0 (detached) to 1 (always attached).

    ``budget`` is a share of the CPU time of ``cpus`` CPUs. ``now`` holds the current duty cycles.
    """
    ceiling = _ceiling([load.cost for load in loads.values()], budget * cpus)
    decided = {}
    for name, load in loads.items():
        duty = min(1.0, ceiling / load.cost) if load.cost > 0 else 1.0
        if load.limit and load.rate > load.limit:
            duty = min(duty, load.limit / load.rate / 10)
        before = now.get(name, 1.0)
        if before < duty < 1.0 and duty < before * _SLACK:
            duty = before
        decided[name] = duty if duty >= MIN_DUTY else 0.0
    return decided


def _ceiling(costs: list[float], allowance: float) -> float:
    """Return the maximum cost per probe at which the total stays within the allowance."""
    if sum(costs) <= allowance:
        return float("inf")
    left = allowance
    costs = sorted(costs)
    for place, cost in enumerate(costs):
        share = left / (len(costs) - place)
        if cost >= share:
            return share
        left -= cost
    return float("inf")
