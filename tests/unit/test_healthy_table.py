"""docs/healthy-loads.md lists each healthy load, and findings not proven by the counts are false alarms."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from incidents import healthy_table
from incidents.counted import Counted
from incidents.healthy import false_alarms
from incidents.healthy_loads import BY_NAME, LOADS, TRUTHS

_SATURATED = Counted(cpus=2, host_busy=1.0, runnable=5.0)


def test_page_contains_each_load() -> None:
    missing = BY_NAME.keys() - healthy_table.kept_rows(healthy_table.PAGE.read_text()).keys()
    assert not missing, "run: cd tests && python -m incidents.healthy && python -m incidents.healthy_table"


def test_each_allowed_finding_has_a_truth() -> None:
    assert {name for load in LOADS for name in load.right} == TRUTHS.keys()


def test_allowed_and_proven_finding_is_not_an_alarm() -> None:
    assert false_alarms(_line("read-only-8", _SATURATED, "cpu_saturated")) == []


def test_finding_that_is_not_allowed_is_an_alarm() -> None:
    assert false_alarms(_line("idle", _SATURATED, "cpu_saturated")) == ["cpu_saturated"]


def test_finding_that_the_counts_do_not_prove_is_an_alarm_and_marked() -> None:
    line = _line("read-only-8", Counted(cpus=2), "cpu_saturated")
    assert false_alarms(line) == ["cpu_saturated"]
    assert "runnable threads on 2 CPUs (**not proven**)" in healthy_table.row(BY_NAME["read-only-8"], [line])


def test_neither_finding_nor_verdict_is_an_alarm() -> None:
    line = _line("idle", Counted())
    assert false_alarms(line) == ["no answer"]
    assert false_alarms(line | {"nothing_wrong": True}) == []


def _line(load: str, counted: Counted, *findings: str) -> dict[str, Any]:
    return {
        "load": load,
        "findings": {name: {} for name in findings},
        "nothing_wrong": False,
        "counted": asdict(counted),
    }
