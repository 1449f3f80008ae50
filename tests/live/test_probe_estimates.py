"""Test that the estimated counts of a probe on a duty cycle agree with an independent counter."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from bpftrace import Independent
from innoscope.common.samples import Histogram, by_series
from innoscope.metrics.collectors.probes import ProbesCollector
from innoscope.target.discover import find_one
from scale import long
from servers import Server
from workloads import Writers

if TYPE_CHECKING:
    from collections.abc import Iterator

    from innoscope.common.samples import Value

SECONDS = 100.0


def _writes(series: dict[tuple[str, tuple[str, ...]], Value]) -> int:
    value = series["redo_write_seconds", ()]
    assert isinstance(value, Histogram)
    return value.count


@pytest.fixture
def commits() -> Iterator[Server]:
    """Yield a server with a steady load.

    The load is paced, so that neither the probe nor a slow disk changes its rate. At full speed, the rate
    would halve within a minute, and the windows of a duty cycle would not be representative.
    """
    options = (*Writers.server_options, "--innodb-flush-log-at-trx-commit=2")
    with Server("mysql-5.6.24", options=options) as server, Writers(server, 4, megabytes=8, rate=1000):
        yield server


@long("the estimate is this close only after 100 s; tests/live/test_probe_governor.py has the duty cycles")
def test_estimate_of_a_duty_cycle_is_within_five_percent(commits: Server) -> None:
    collector = ProbesCollector(find_one(commits.pid), families=frozenset({"redo"}), budget=0.0003)
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
    assert report.state == "sampled"
    assert estimate == pytest.approx(independent.count, rel=0.05)
