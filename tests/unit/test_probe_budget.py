"""Under the probe budget, expensive probes are throttled and cheap ones stay attached."""

from __future__ import annotations

import pytest

from innoscope.probes.budget import MIN_DUTY, Load, duties

HIT = 1e-6  # seconds


def _cost(loads: dict[str, Load], decided: dict[str, float]) -> float:
    return sum(load.cost * decided[name] for name, load in loads.items())


@pytest.mark.parametrize(
    ("load", "budget", "duty"),
    [
        (Load(5_000, HIT), 0.01, 1.0),
        (Load(0, HIT), 0.0, 1.0),
        (Load(1.1 * 0.01 / (MIN_DUTY * HIT), HIT), 0.01, 0.0),
        (Load(100_000, HIT, limit=50_000), 1.0, 0.05),
    ],
    ids=["within the budget", "without hits", "below the minimum duty cycle", "under a global mutex"],
)
def test_a_probe_gets_the_duty_that_its_budget_allows(load: Load, budget: float, duty: float) -> None:
    assert duties({"probe": load}, budget=budget, cpus=1, now={}) == {"probe": pytest.approx(duty)}


def test_only_the_most_expensive_probe_is_throttled() -> None:
    loads = {"cold": Load(100, HIT), "warm": Load(4_000, HIT), "hot": Load(400_000, HIT)}
    decided = duties(loads, budget=0.01, cpus=1, now={})
    assert decided["cold"] == decided["warm"] == 1.0
    assert 0 < decided["hot"] < 0.02
    assert _cost(loads, decided) == pytest.approx(0.01)


def test_two_expensive_probes_cost_the_same_after_throttling() -> None:
    loads = {"hot": Load(400_000, HIT), "hotter": Load(800_000, HIT)}
    decided = duties(loads, budget=0.01, cpus=2, now={})
    assert decided["hot"] == pytest.approx(2 * decided["hotter"])
    assert _cost(loads, decided) == pytest.approx(0.02)


def test_small_changes_of_load_do_not_change_the_duty() -> None:
    loads = {"hot": Load(100_000, HIT)}
    assert duties(loads, budget=0.01, cpus=1, now={"hot": 0.09})["hot"] == 0.09
    assert duties(loads, budget=0.01, cpus=1, now={"hot": 0.05})["hot"] == pytest.approx(0.1)
