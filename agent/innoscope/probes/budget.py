"""Decide how much of the time each probe may be attached. The decision is pure and repeated each second.

The cost of a probe is its hits times the cost of one hit, measured on this host. While the sum is within the
budget, all probes stay attached. Beyond it, the hottest probes get a duty cycle, the share of the time that
they are attached, so that each of them costs the same; the others stay attached.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

#: With a smaller duty than this a probe gives no useful rate, so it is detached.
MIN_DUTY = 0.001
#: A duty is only increased by at least this factor, to avoid oscillation.
_SLACK = 1.25


@dataclass(frozen=True, slots=True)
class Load:
    """The load of one probe: hits/s while attached, CPU seconds per hit, the maximum hits/s."""

    rate: float
    hit_cost: float
    limit: int | None = None

    @property
    def cost(self) -> float:
        """Return the CPU seconds per second if it were attached all the time."""
        return self.rate * self.hit_cost


def duties(
    loads: Mapping[str, Load], *, budget: float, cpus: float, now: Mapping[str, float]
) -> dict[str, float]:
    """Return the duty of each probe: 1 always attached, 0 detached.

    ``budget`` is a share of the CPU time of ``cpus`` CPUs. ``now`` has the current duties.
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
    """Return the maximum cost per probe with which the sum stays within the allowance."""
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
