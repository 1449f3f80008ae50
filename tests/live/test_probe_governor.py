"""The budget holds in a storm, and what is counted on a duty cycle is an honest estimate."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from bpftrace import Independent
from innoscope.collectors.probes import ProbesCollector
from innoscope.metrics.model import Histogram, by_series
from innoscope.target.discover import find_one
from live import figures
from servers import Server
from workloads import Oltp, UpdateStorm

if TYPE_CHECKING:
    from collections.abc import Iterator

    from innoscope.metrics.model import Value
    from innoscope.probes.governor import Governor

CLIENTS = 40
SECONDS = 100.0
PATIENCE_S = 60.0


@pytest.fixture(scope="module")
def storm() -> Iterator[Server]:
    with Server("mysql-5.6.24") as server, UpdateStorm(server, CLIENTS):
        yield server


def _cost(series: dict[tuple[str, tuple[str, ...]], Value]) -> float:
    costs = [value for (metric, _), value in series.items() if metric == "probe_cost_seconds"]
    return sum(cost for cost in costs if not isinstance(cost, Histogram))


def _writes(series: dict[tuple[str, tuple[str, ...]], Value]) -> int:
    value = series["redo_write_seconds", ()]
    assert isinstance(value, Histogram)
    return value.count


@pytest.mark.parametrize("budget", [0.01, 0.001])
def test_the_budget_holds_with_the_hottest_family(storm: Server, budget: float) -> None:
    families = frozenset({"spin", "latch", "redo", "deadlock", "row_lock", "fsync", "purge"})
    collector = ProbesCollector(find_one(storm.pid), families=families, budget=budget)
    governor = collector.start()
    try:
        time.sleep(5)  # duty cycles come to rest
        before, begun = _cost(by_series(collector.collect())), time.monotonic()
        time.sleep(15)
        spent, took = _cost(by_series(collector.collect())) - before, time.monotonic() - begun
        states = {report.probe: report.state for report in collector.report()}
    finally:
        collector.close()
    share = spent / took / governor.cpus
    figures.record("budget", f"storm/{budget:.1%}", f"spent {share:.3%} of the CPUs, {states}", share=share)
    # Rates move between two decisions; what was spent over many must fit.
    assert share <= 1.25 * budget
    assert budget > share or "sampled" in states.values()
    assert states["row_lock_wait"] != "off", "a cheap probe does not pay for the hot one"


def test_it_stops_and_goes_on_where_it_was(storm: Server) -> None:
    """Nothing is compiled or learnt again: the hot ones are on their duty cycles from the start."""
    collector = ProbesCollector(find_one(storm.pid), families=frozenset({"redo", "row_lock"}), budget=0.001)
    governor = collector.start()
    try:
        time.sleep(3)
        governor.stop()
        attached = [point.name for point in governor.attachment.points if point.attached]
        stopped = {report.probe: report for report in collector.report()}
        time.sleep(0.3)
        governor.refresh()
        later = {report.probe: report.hits for report in collector.report()}
        governor.start()
        again = {report.probe: report.duty for report in collector.report()}
        goes_on = _is_hit_again(governor, later)
    finally:
        collector.close()

    assert attached == []
    assert "sampled" in {report.state for report in stopped.values()}
    assert later == {probe: report.hits for probe, report in stopped.items()}
    assert again == {probe: report.duty for probe, report in stopped.items()}
    assert goes_on


def _is_hit_again(governor: Governor, before: dict[str, int]) -> bool:
    """Within the pause of a duty cycle, at least one more hit of each probe that was hit before."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        governor.refresh()
        if all(report.hits > before[report.probe] for report in governor.report() if report.hits):
            return True
        time.sleep(0.1)
    return False


@pytest.fixture
def commits() -> Iterator[Server]:
    """An even load that waits for no disk, and of whose operations a probe is a small part.

    While one is on, the server is slower by what it costs, and so is what is counted.
    """
    options = (*Oltp.server_options, "--innodb-flush-log-at-trx-commit=2")
    with Server("mysql-5.6.24", options=options) as server, Oltp(server, 4):
        yield server


def test_estimates_of_a_duty_cycle_are_close(commits: Server) -> None:
    collector = ProbesCollector(find_one(commits.pid), families=frozenset({"redo"}), budget=0.003)
    governor = collector.start()
    try:
        time.sleep(5)
        [point] = [point for point in governor.attachment.points if point.name == "redo_write"]
        [place] = point.placed.places
        path = commits.installation.mysqld
        before = _writes(by_series(collector.collect()))
        with Independent(f"uprobe:{path}:{place.symbol} /pid == {commits.pid}/") as independent:
            before = _writes(by_series(collector.collect()))
            time.sleep(SECONDS)
            after = _writes(by_series(collector.collect()))
        [report] = [report for report in collector.report() if report.probe == "redo_write"]
    finally:
        collector.close()
    estimate = after - before
    figures.record(
        "truth", "mysql-5.6.24/sampled redo writes",
        f"estimate {estimate:,}, bpftrace {independent.count:,}, attached {report.duty:.1%}",
    )  # fmt: skip
    assert report.state == "sampled"
    assert estimate == pytest.approx(independent.count, rel=0.05)
