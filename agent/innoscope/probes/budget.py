"""How much probing may cost, and what to do about it: a pure decision, taken anew every second.

The cost of a probe is its hits times what one was measured to cost on this host. While the sum is within the
budget everything stays attached. Beyond it the hottest probes share what is left: each gets a duty cycle, the
share of the time that it is attached, so that the most expensive ones cost the same and the others are not
touched.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

#: Attached for less than this share of the time a probe tells nothing: it is taken off instead.
LEAST_DUTY = 0.001
#: A probe on a duty cycle gets more only when this much is to be had, so that it does not swing.
_SLACK = 1.25


@dataclass(frozen=True, slots=True)
class Load:
    """One probe: hits a second while attached, seconds that each costs the server, the most it may have."""

    rate: float
    hit_cost: float
    limit: int | None = None

    @property
    def cost(self) -> float:
        """Seconds of CPU a second, were it attached all the time."""
        return self.rate * self.hit_cost


def duties(
    loads: Mapping[str, Load], *, budget: float, cpus: float, now: Mapping[str, float]
) -> dict[str, float]:
    """The share of the time that each probe may be attached: 1 always, 0 taken off.

    ``budget`` is a share of the CPU time of ``cpus`` CPUs; ``now`` has the present duties.
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
        decided[name] = duty if duty >= LEAST_DUTY else 0.0
    return decided


def _ceiling(costs: list[float], allowance: float) -> float:
    """What each probe may cost at most so that all together cost no more than the allowance."""
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
