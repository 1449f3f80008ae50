"""The scores of a server's findings are exported while they are current, and missing stacks are reported."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from innoscope.daemon.agent.finding_scores import FindingScores
from innoscope.diagnose.rules import default_rules
from innoscope.metrics import registry
from unit.evidence import evidence
from unit.test_agent_recording import NAME, FakeSensor, recorders, scrape, sensor, servers

if TYPE_CHECKING:
    from innoscope.common.samples import Sample
    from innoscope.daemon.agent.recorder import Recorders
    from innoscope.diagnose.evidence import Evidence

__all__ = ["recorders", "sensor", "servers"]


def by_name(samples: list[Sample]) -> dict[tuple[str, ...], object]:
    return {(sample.metric, *sample.labels): sample.value for sample in samples}


def scores_at(recorders: Recorders, now: float) -> FindingScores:
    for at in range(int(now) - 40, int(now), 10):
        recorders.add_scrape(at, scrape({"connections_running": 11, "statements": at}))
    scores = FindingScores(recorders, interval_s=10)
    scores.refresh(now)
    return scores


def test_findings_are_exported_until_they_are_old(recorders: Recorders) -> None:
    scores = scores_at(recorders, 1000)
    found = by_name(scores.samples(NAME, 1010))
    assert found[("findings_up",)] == 1
    assert float(str(found[("finding_score", "row_lock_convoy")])) > 50
    assert scores.samples(NAME, 1050) == []
    assert scores.samples("other", 1010) == []


def test_server_without_stacks_is_reported_as_such(recorders: Recorders, sensor: FakeSensor) -> None:
    sensor.down = True
    found = by_name(scores_at(recorders, 1000).samples(NAME, 1000))
    assert found[("findings_up",)] == 0
    assert float(str(found[("findings_unchecked",)])) > 10
    assert ("finding_score", "row_lock_convoy") not in found


def test_sensor_that_does_not_answer_delays_the_agent_for_a_few_seconds_only() -> None:
    """Diagnose ten servers; reading the evidence of each one takes 2 s."""
    now = [0.0]
    asked: list[str] = []

    class Slow:
        def __init__(self, name: str) -> None:
            self._name = name

        def between(self, begin: float, end: float) -> Evidence:
            asked.append(self._name)
            now[0] += 2.0
            return evidence({"idle": 1})

    class Many:
        def all(self) -> dict[str, Slow]:
            return {str(number): Slow(str(number)) for number in range(10)}

    scores = FindingScores(cast("Recorders", Many()), 10, lambda: now[0])
    scores.refresh(1000)
    assert asked == ["0", "1", "2"]
    assert scores.samples("2", 1000)
    assert scores.samples("3", 1000) == []


def test_all_findings_of_the_catalog_fit_into_the_metric() -> None:
    assert len(default_rules()) <= registry.default()["finding_score"].most_series
