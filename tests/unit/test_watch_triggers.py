"""Rules of `innoscope watch` work as documented, and the error for a malformed rule suggests a fix."""

from __future__ import annotations

import math
from typing import Any

import pytest

from innoscope.diagnose.evidence import Evidence, MetricReadings
from innoscope.diagnose.signals import Signals
from innoscope.diagnose.unavailable import Unknown
from innoscope.diagnose.watch.triggers import (
    FINDING_S,
    PLAIN,
    RECENT_S,
    BadTrigger,
    known,
    names,
    parse,
    shown,
    value,
)
from innoscope.sampling.snapshot_history import CLIENT, SnapshotSummary


def evidence(threads: dict[str, int] | None = None, *values: dict[str, Any]) -> Evidence:
    counts = {(CLIENT, wait): count for wait, count in (threads or {}).items()}
    snapshots = tuple(SnapshotSummary(float(at), counts) for at in range(3)) if threads is not None else ()
    readings = tuple(MetricReadings(float(at), one) for at, one in enumerate(values))
    return Evidence({}, 0.0, 2.0, readings, snapshots)


@pytest.mark.parametrize(
    ("text", "name", "number"),
    [
        ("threads_running>50", "threads_running", 50),
        (" share.row_lock >= 0.5 ", "share.row_lock", 0.5),
        ("share.row_lock>50%", "share.row_lock", 0.5),
        ("response_time>200ms", "response_time", 0.2),
        ("mean.fsync_seconds.redo>500us", "mean.fsync_seconds.redo", 5e-4),
        ("checkpoint_age>=1.5G", "checkpoint_age", 1.5 * 2**30),
        ("fact.statement_rate<100", "fact.statement_rate", 100),
        ("active>1e3", "active", 1000),
    ],
)
def test_a_rule_is_a_name_and_a_number(text: str, name: str, number: float) -> None:
    trigger = parse(text)
    assert trigger.name == name
    assert trigger.number == pytest.approx(number)
    assert trigger.window_s == RECENT_S
    assert trigger.text == text


@pytest.mark.parametrize(("compare", "holds"), [(">", (0, 0, 1)), (">=", (0, 1, 1)), ("<", (1, 0, 0))])
def test_each_comparison_includes_or_excludes_its_number(compare: str, holds: tuple[int, ...]) -> None:
    trigger = parse(f"active{compare}5")
    assert tuple(int(trigger.holds(number)) for number in (4, 5, 6)) == holds


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("threads_runing>50", "did you mean threads_running?"),
        ("share.rowlock>0.5", "did you mean share.row_lock?"),
        ("last.checkpoint_age_bites>5", "did you mean last.checkpoint_age_bytes?"),
        ("fact.statement_rates>5", "did you mean fact.statement_rate?"),
        ("finding:flushing_strom", "did you mean finding:flushing_storm?"),
        ("threads_running", "expected a name, one of > >= < <=, and a number"),
        ("threads_running>lots", "expected a name, one of > >= < <=, and a number"),
        ("threads_running>5parsecs", "unknown unit 'parsecs'"),
        ("threads_running>1.2.3", "is not a number"),
        ("threads_running=>5", "expected a name, one of > >= < <=, and a number"),
        ("hunch>5", "known names: threads_running, threads_connected, "),
        ("hunch>5", "--list"),
        ("", "expected a name, one of > >= < <=, and a number"),
        (">" * 2000, "expected a name, one of > >= < <=, and a number"),
    ],
)
def test_a_malformed_rule_is_refused_with_a_suggestion(text: str, words: str) -> None:
    with pytest.raises(BadTrigger) as error:
        parse(text)
    assert words in f"{error.value.what} {error.value.remedy}"
    assert error.value.exit_code == 2


def test_common_names_are_aliases_of_signals() -> None:
    calm = {"connections_running": 7, "checkpoint_age_ratio": 0.4}
    signals = Signals(evidence({"on_cpu": 3, "idle": 9}, calm))
    assert value("threads_running", signals) == 7
    assert value("checkpoint_age_ratio", signals) == 0.4
    assert value("threads_busy", signals) == value("active", signals) == 3
    with pytest.raises(Unknown):
        value("history_list", signals)


def test_response_time_follows_from_little_s_law() -> None:
    statements = [{"statements": 0}, {"statements": 400}, {"statements": 800}]
    assert value("response_time", Signals(evidence({"on_cpu": 8}, *statements))) == 8 / 400
    still = [{"statements": 5}] * 3
    assert value("response_time", Signals(evidence({"row_lock": 8}, *still))) == math.inf
    assert value("response_time", Signals(evidence({"idle": 8}, *still))) == 0


def test_a_finding_can_be_a_trigger() -> None:
    trigger = parse("finding:row_lock_convoy")
    assert trigger.window_s == FINDING_S
    assert trigger.holds(value(trigger.name, Signals(evidence({"row_lock": 10}))))
    assert not trigger.holds(value(trigger.name, Signals(evidence({"idle": 10}))))


def test_every_listed_name_is_a_valid_rule() -> None:
    there_are = dict(known())
    assert "row_lock" in there_are["background.CLASS growth.CLASS share.CLASS threads.CLASS"]
    for name in there_are["by name"]:
        parse(f"{name}>1")
    for finding in there_are["finding:NAME"]:
        parse(f"finding:{finding}")
    shown_names = names(evidence({"row_lock": 1}, {"checkpoint_age_ratio": 0.5}))
    assert {*PLAIN, "share.row_lock", "last.checkpoint_age_ratio"} <= {*shown_names}
    for name in shown_names:
        parse(f"{name}>1")


def test_numbers_are_shown_with_three_digits() -> None:
    assert [shown(number) for number in (0.94321, 12, 1234567.8, math.inf)] == [
        "0.943",
        "12",
        "1,234,568",
        "inf",
    ]
