"""Captures are taken at the right time and cover the right interval. The recorder and the clock are fake."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

from innoscope.diagnose.evidence import Evidence, MissingSource
from innoscope.diagnose.incident.server_facts import ServerFacts
from innoscope.diagnose.sql_queries import SqlAnswers
from innoscope.diagnose.watch.loop import Stalled, Triggered, TriggerUnavailable, Watcher, WatchSettings
from innoscope.diagnose.watch.triggers import parse
from innoscope.sampling.snapshot_history import CLIENT, SnapshotSummary

if TYPE_CHECKING:
    from collections.abc import Callable

    from innoscope.diagnose.watch.loop import Event

RULE = parse("share.row_lock>0.5")


@dataclass
class Recorder:
    """A fake recorder with one snapshot per second. While ``stalled`` is true, threads wait for row locks."""

    stalled: Callable[[float], bool]
    blind: MissingSource | None = None
    timeouts: int = 0
    done: list[str] = field(default_factory=list)

    def without_sql(self, begin: float, end: float) -> Evidence:
        return self.between(begin, end)

    def between(self, begin: float, end: float, sql_answers: SqlAnswers | None = None) -> Evidence:
        if self.blind is not None:
            return Evidence({}, begin, end, missing={"looks": self.blind})
        snapshots = tuple(
            SnapshotSummary(float(at), {(CLIENT, "row_lock" if self.stalled(at) else "on_cpu"): 5})
            for at in range(1000)
            if begin <= at <= end
        )
        answers = sql_answers.answers if sql_answers is not None else {}
        return Evidence({"flavour": "mysql", "pid": "7"}, begin, end, snapshots=snapshots, answers=answers)

    def begin(self) -> None:
        self.done.append("begin")

    def query_locks(self) -> SqlAnswers:
        self.done.append("query")
        answers_of_sql = SqlAnswers()
        if self.timeouts:
            self.timeouts -= 1
            answers_of_sql.missing["sql.transactions"] = MissingSource("timeout", "no answer within 1 s")
            return answers_of_sql
        answers_of_sql.answers["transactions"] = ({"state": "RUNNING"},)
        return answers_of_sql

    def end(self) -> ServerFacts:
        self.done.append("end")
        return ServerFacts(status="the status")


def events(watcher: Watcher, begin: int, end: int) -> list[tuple[int, Event]]:
    return [(now, event) for now in range(begin, end) for event in watcher.step(float(now))]


def watcher(recorder: Recorder, *, for_s: float = 3, cooldown_s: float = 100) -> Watcher:
    return Watcher(recorder, WatchSettings((RULE,), for_s, 10, 60, cooldown_s), 0.0)


def test_queries_that_time_out_are_repeated_at_the_end_of_a_capture() -> None:
    recorder = Recorder(lambda at: at >= 200, timeouts=1)
    *_, (_, stalled) = events(watcher(recorder), 100, 250)
    assert isinstance(stalled, Stalled)
    assert stalled.evidence.answers["transactions"] == ({"state": "RUNNING"},)
    assert recorder.done == ["begin", "query", "query", "end"]


def test_a_capture_separates_the_stall_from_the_time_before() -> None:
    recorder = Recorder(lambda at: at >= 200)
    (at, triggered), (done, stalled) = events(watcher(recorder), 100, 250)
    assert isinstance(triggered, Triggered)
    assert isinstance(stalled, Stalled)
    assert 203 <= at <= 205
    assert done == at + 10
    before, evidence = stalled.before, stalled.evidence
    assert before.threads(clients=True) == {"on_cpu": 5 * len(before.snapshots)}
    assert len(before.snapshots) == 60
    assert evidence.threads(clients=True)["row_lock"] >= 50
    assert before.snapshots[-1].at < evidence.snapshots[0].at <= before.snapshots[-1].at + 1
    assert evidence.answers
    assert recorder.done == ["begin", "query", "end"]
    capture, verdict = stalled.capture()
    assert capture.trigger is not None
    assert capture.trigger.startswith("share.row_lock>0.5 (")
    assert capture.status == "the status"
    assert verdict.findings[0].name == "row_lock_convoy"


def test_a_rule_must_hold_without_interruption() -> None:
    now_and_then = Recorder(lambda at: at % 8 < 3)
    assert events(watcher(now_and_then, for_s=6), 100, 300) == []
    assert events(watcher(now_and_then, for_s=0), 100, 112) != []


def test_captures_are_separated_by_the_cooldown() -> None:
    found = events(watcher(Recorder(lambda at: True), cooldown_s=100), 100, 330)
    at = [now for now, event in found if isinstance(event, Triggered)]
    assert at == [103, 216, 329]  # 3 s for the rule; later also 10 s of capture and 100 s of cooldown


@pytest.mark.parametrize("seen", [None, MissingSource("rights", "not root")])
def test_a_rule_without_data_is_reported_once_per_reason(seen: MissingSource | None) -> None:
    recorder = Recorder(lambda at: True, MissingSource("rights", "not root"))
    one = watcher(recorder)
    found = events(one, 0, 60)
    assert [type(event) for _, event in found] == [TriggerUnavailable]
    assert found[0][0] > 10
    recorder.blind = seen and MissingSource("gone", "another reason")
    expected = [TriggerUnavailable] if seen else [Triggered, Stalled]
    assert [type(event) for _, event in events(one, 60, 80)] == expected


def test_a_capture_is_finished_early_when_the_server_ends() -> None:
    one = watcher(Recorder(lambda at: True))
    assert one.finish_early(100.0) is None
    events(one, 100, 106)
    stalled = one.finish_early(106.0)
    assert stalled is not None
    assert stalled.evidence.ended == 106
    assert one.finish_early(107.0) is None


def test_the_recorder_keeps_the_time_that_a_capture_covers() -> None:
    settings = WatchSettings((RULE, parse("finding:metadata_lock")), 3, 10, 60)
    assert settings.span_s >= 60 + 10 + 3 + 10
