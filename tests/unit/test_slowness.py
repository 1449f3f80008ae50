"""Time limits are extended on slow hosts, and a scrape still ends before Prometheus gives up."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from innoscope.common import slowness
from innoscope.common.supervision import Supervisor
from innoscope.daemon.agent.routes import budget
from innoscope.metrics.collectors.runner import Runner
from unit.test_runner import Collecting, Gate

if TYPE_CHECKING:
    from innoscope.common.supervision import Beat


@pytest.mark.parametrize(
    ("cpu_seconds", "factor"),
    [
        pytest.param(0.0, 1, id="a clock that is too coarse"),
        pytest.param(0.0008, 1, id="a current server"),
        pytest.param(0.01, 4, id="an emulated CPU"),
        pytest.param(5.0, 20, id="the maximum"),
    ],
)
def test_the_factor_is_bounded(cpu_seconds: float, factor: float) -> None:
    assert slowness.bounded(cpu_seconds) == pytest.approx(factor)


def test_this_host_is_measured_once() -> None:
    assert 1 <= slowness.factor() <= 20
    assert slowness.factor() == slowness.factor()
    assert slowness.scaled(0.5) == 0.5 * slowness.factor()


@pytest.mark.parametrize(
    ("factor", "header", "seconds"),
    [(1, None, 0.8), (1, "0.5", 0.35), (10, None, 8), (10, "10", 8), (10, "1", 0.85), (20, "0.1", 0.05)],
)
def test_a_scrape_ends_within_its_timeout_on_any_host(
    monkeypatch: pytest.MonkeyPatch, factor: float, header: str | None, seconds: float
) -> None:
    monkeypatch.setattr(slowness, "factor", lambda: factor)

    assert budget(header, slowness.scaled(0.8)) == pytest.approx(seconds)


def test_a_runner_extends_the_timeouts_of_its_collectors() -> None:
    gate = Gate()
    runner = Runner([Collecting("memory", gate, timeout=0.01)], scale=3)
    (late,) = runner.run()
    gate.open.set()

    assert late.reason == "timeout: no answer within 0.03 s"


@pytest.mark.parametrize(("factor", "hung"), [(1, ["watch"]), (1e9, [])])
def test_a_thread_may_be_silent_for_longer_on_a_slow_host(
    monkeypatch: pytest.MonkeyPatch, factor: float, hung: list[str]
) -> None:
    monkeypatch.setattr(slowness, "factor", lambda: factor)
    ended = threading.Event()

    def run(_beat: Beat) -> None:
        ended.wait()

    supervisor = Supervisor()
    supervisor.start("watch", run, 1e-9)

    assert supervisor.check() == hung
    ended.set()
