"""The probe budget: expensive probes are throttled, cheap ones are not touched."""

from __future__ import annotations

import pytest

from innoscope.probes.budget import MIN_DUTY, Load, duties

HIT = 1e-6  # seconds


def _cost(loads: dict[str, Load], decided: dict[str, float]) -> float:
    return sum(load.cost * decided[name] for name, load in loads.items())


def test_all_probes_stay_attached_within_the_budget() -> None:
    loads = {"a": Load(1000, HIT), "b": Load(5000, HIT)}
    assert duties(loads, budget=0.01, cpus=2, now={}) == {"a": 1.0, "b": 1.0}


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


def test_a_probe_below_the_minimum_duty_is_detached() -> None:
    loads = {"flood": Load(100_000_000, HIT)}
    assert 0.01 / loads["flood"].cost < MIN_DUTY
    assert duties(loads, budget=0.01, cpus=1, now={}) == {"flood": 0.0}


def test_a_probe_under_a_global_mutex_is_throttled_by_its_own_limit() -> None:
    loads = {"search": Load(100_000, HIT, limit=50_000)}
    assert duties(loads, budget=1.0, cpus=4, now={})["search"] == pytest.approx(0.05)


def test_small_changes_of_load_do_not_change_the_duty() -> None:
    loads = {"hot": Load(100_000, HIT)}
    assert duties(loads, budget=0.01, cpus=1, now={"hot": 0.09})["hot"] == 0.09
    assert duties(loads, budget=0.01, cpus=1, now={"hot": 0.05})["hot"] == pytest.approx(0.1)


def test_a_probe_without_hits_stays_attached_without_a_budget() -> None:
    assert duties({"idle": Load(0, HIT)}, budget=0.0, cpus=1, now={}) == {"idle": 1.0}
