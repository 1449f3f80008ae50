"""Expensive snapshots are taken less often, and do not make other servers' snapshots less frequent."""

from __future__ import annotations

import pytest

from innoscope.metrics.collectors.snapshot_budget import SnapshotBudget

_USER = "uid 27"


def steady(budget: SnapshotBudget, servers: dict[str, tuple[str, float]]) -> dict[str, float]:
    """Return the pause of each server, once the CPU time of all servers is known.

    ``servers`` maps a server to its turn (its owner or container) and the CPU time of a snapshot. The
    interval is 1 s.
    """
    pauses = {}
    for _ in range(2):
        for server, (turn, cpu_s) in servers.items():
            pauses[server] = budget.pause_s(server, turn, 1.0, 0.0, cpu_s)
    return pauses


def cores(servers: dict[str, tuple[str, float]], pauses: dict[str, float], turn: str) -> float:
    """Return the CPU seconds per second of all servers whose turn starts with ``turn``."""
    return sum(cpu_s / pauses[one] for one, (its, cpu_s) in servers.items() if its.startswith(turn))


@pytest.mark.parametrize(
    ("duration_s", "pause_s"), [(0.0, 1.0), (0.1, 1.0), (0.25, 1.0), (0.5, 2.0), (3600.0, 60.0)]
)
def test_a_pause_is_four_durations(duration_s: float, pause_s: float) -> None:
    assert SnapshotBudget().pause_s("one", _USER, 1.0, duration_s, 0.0) == pause_s


def test_servers_within_the_budget_keep_the_interval() -> None:
    servers = {str(number): (_USER, 0.01) for number in range(64)}
    assert set(steady(SnapshotBudget(), servers).values()) == {1.0}


@pytest.mark.parametrize("turn", ["container/{}", "container/a", "uid 1000"])
def test_expensive_servers_slow_down_no_others(turn: str) -> None:
    servers = {f"hostile {number}": (turn.format(number), 0.5) for number in range(60)}
    servers |= {f"real {number}": (_USER, 0.05) for number in range(4)}
    pauses = steady(SnapshotBudget(), servers)
    assert {pauses[one] for one in servers if one.startswith("real")} == {1.0}
    assert cores(servers, pauses, "") == pytest.approx(1.0)


def test_users_and_containers_get_equal_shares() -> None:
    servers = {f"c{number}": (f"container/{number}", 0.5) for number in range(20)}
    servers |= {f"u{number}": (_USER, 0.5) for number in range(10)}
    pauses = steady(SnapshotBudget(), servers)
    assert cores(servers, pauses, "container") == pytest.approx(0.5)
    assert cores(servers, pauses, _USER) == pytest.approx(0.5)


def test_one_expensive_server_does_not_slow_down_others_of_its_owner_or_group() -> None:
    servers = {
        "slow": ("container/a", 2.0),
        "neighbor": ("container/a", 0.01),
        "other": ("container/b", 0.01),
    }
    pauses = steady(SnapshotBudget(), servers)
    assert (pauses["neighbor"], pauses["other"]) == (1.0, 1.0)
    assert pauses["slow"] > 2.0


def test_a_forgotten_server_uses_no_budget() -> None:
    budget = SnapshotBudget()
    budget.pause_s("slow", _USER, 1.0, 0.0, 10.0)
    budget.forget("slow")
    budget.forget("slow")
    assert budget.pause_s("other", _USER, 1.0, 0.0, 0.9) == 1.0
