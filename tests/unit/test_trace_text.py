"""Test the parts of a trace that need no server: refusals, and the output of results."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from innoscope._native import Function
from innoscope.cli.main import main
from innoscope.common.errors import NoSuchProcess
from innoscope.common.samples import Histogram
from innoscope.probes.trace import document, functions, hot, latency, suggestions
from innoscope.probes.trace import text as trace_text
from innoscope.probes.trace.model import Cost, TracedFunction, TraceOptions, TraceResult, Trial, Values
from innoscope.probes.trace.run import refusal
from innoscope.probes.trace.server_pace import Loss
from innoscope.sampling.fold import StackReport
from innoscope.sampling.model import Frame, Trust
from unit.snapshots import target

PLACE = Function("buf_page_get_gen", 0x1000, 64, 0x1000, stepped=False)
CHOSEN = TracedFunction(
    "buf_page_get_gen", "/proc/1/map_files/0-1", (PLACE,), why_hot="each access", instead="innoscope trace x"
)
COST = Cost(call_s=2e-6, stack_s=20e-6, cpus=2)
TRIAL = Trial(2000, 0.005, 0.0)


def seen(**changes: Any) -> TraceResult:
    made = TraceResult(CHOSEN, TRIAL, COST, seconds=10.0, calls=1000, hits=1010)
    for name, value in changes.items():
        setattr(made, name, value)
    return made


def text(made: TraceResult) -> str:
    return "\n".join(trace_text.lines(made, target()))


def stacks(*counts: int) -> StackReport:
    report = StackReport(target())
    for number, count in enumerate(counts):
        frames = (Frame("buf_page_get_gen", "mysqld", 1), Frame(f"caller{number}", "mysqld", 2))
        report.count("calls", Trust.EXACT, tuple(frame.label for frame in frames), frames, count)
    return report


def test_a_refusal_gives_rate_cost_and_alternative() -> None:
    error = refusal(CHOSEN, TraceOptions(), COST, TRIAL, 0.05)
    assert error.exit_code == 14
    assert "400,000 calls per second" in error.what
    assert "40.0% of its 2 CPUs (800 ms/s); the budget is 1.0%" in error.what
    assert error.remedy is not None
    assert "probed for 50 ms" in error.remedy
    assert "instead: innoscope trace x" in error.remedy
    assert "--force" in error.remedy


def test_a_function_under_a_global_lock_has_a_higher_cost() -> None:
    assert replace(COST, weight=10).share(100) == pytest.approx(10 * COST.share(100))
    error = refusal(CHOSEN, TraceOptions(), replace(COST, weight=10), TRIAL, 0.05)
    assert "weight 10)" in error.what


def test_a_call_without_a_return_probe_costs_less() -> None:
    assert replace(COST, return_s=1e-6).without_return.call_s == pytest.approx(1e-6)


def test_the_rate_of_stacks_follows_from_the_budget() -> None:
    assert COST.stacks_per_second(0.01) == 250
    assert replace(COST, stack_s=1e-3).stacks_per_second(0.01) == 10


def test_the_headline_gives_rate_and_cost() -> None:
    assert trace_text.headline(seen()) == (
        "buf_page_get_gen: 1,000 calls in 10.0 s, 100 per second · cost 0.01% of the server's 2 CPUs "
        "(2.0 µs per call) · not stopped"
    )


def test_latencies_have_quantiles_and_a_histogram() -> None:
    made = seen(latency=Histogram((0,) * 10 + (900, 0, 100), 2_000_000))
    shown = text(made)
    assert "mean 2.00 µs, p50 2.05 µs, p90 2.05 µs, p99 8.19 µs" in shown
    assert "1.02 µs to 2.05 µs" in shown
    assert "2.05 µs to 4.10 µs" in shown, "an empty range between others"
    assert "8.19 µs to 16.4 µs" not in shown


def test_values_are_listed_by_frequency_and_by_powers_of_two() -> None:
    values = Values(1, {7: 10, 3: 30, 1 << 40: 5}, 2, (0,) * 65)
    lines = text(seen(values=replace(values, octaves=(0, 0, 30, 10, *(0,) * 37, 5, *(0,) * 23)))).splitlines()
    [first, second, third] = [line.split()[2] for line in lines[4:7]]
    assert (first, second, third) == ("3", "7", "0x10000000000")
    assert any("did not fit" in line for line in lines)
    assert any("2 to 3" in line for line in lines)


def test_callers_have_their_share_and_the_number_of_stacks() -> None:
    made = seen(report=stacks(300, 700), stacks_taken=250)
    lines = text(made).splitlines()
    assert "2 different stacks in 250 of 1,000 calls (one in 4.0, sampled evenly" in text(made)
    assert lines[-2].split() == ["700", "70.0%", "buf_page_get_gen,caller1"]
    assert "one of" not in text(seen(report=stacks(10), stacks_taken=1000))


def test_missing_data_is_noted() -> None:
    made = seen(calls=0, stacks_held_back=3, stacks_lost=4, ended="interrupted after 1.0 of 10 s")
    notes = list(trace_text.notes(made))
    assert notes[0] == "interrupted after 1.0 of 10 s"
    assert "no calls were seen" in notes[1]
    assert "3 stacks were skipped" in notes[2]
    assert "4 stacks were lost" in notes[3]


def test_the_loss_is_given_as_cpu_time_and_as_throughput() -> None:
    loss = Loss(0.5, 5.0, 0.05, {"statements": 1000.0}, {"statements": 900.0}, None)
    shown = text(seen(loss=loss))
    assert "0.50 s of CPU in 5.0 s: 100 ms/s, 5.0% of the server's 2 CPUs" in shown
    assert "1,000 statements per second before, 900 during (-10 %)" in shown


def test_json_has_the_same_results_as_the_text() -> None:
    made = seen(
        latency=Histogram((0, 4), 10), report=stacks(5), values=Values(0, {1: 2}, 0, (0, 2)),
        loss=Loss(0.5, 5.0, 0.05, {}, {}, "refused"),
    )  # fmt: skip
    printed = json.loads(document.line(made, target()))
    assert printed["calls"] == 1000
    assert printed["latency"] == {"calls": 4, "total_ns": 10, "octaves_ns": [[2, 4]]}
    assert printed["argument"]["values"] == [[1, 2]]
    assert printed["callers"]["stacks"][0]["share"] == 1
    assert printed["loss"]["no_sql"] == "refused"


@pytest.mark.parametrize(
    ("ns", "shown"), [(3, "3 ns"), (1024, "1.02 µs"), (65536, "65.5 µs"), (131e6, "131 ms"), (2e9, "2.00 s")]
)
def test_durations_have_three_digits(ns: float, shown: str) -> None:
    assert latency.duration(ns) == shown


def test_a_glob_matches_whole_names() -> None:
    assert suggestions.glob("buf_*_get")("buf_page_get")
    assert not suggestions.glob("buf_*_get")("buf_page_get_gen")


def test_hot_functions_are_recognized_by_their_symbols() -> None:
    known = hot.find("_Z16buf_page_get_genmmmmP11buf_block_tmPKcmP5mtr_t")
    assert known is not None
    assert "each access" in known.why
    search = hot.find("lock_deadlock_recursive")
    assert search is not None
    assert search.weight > 1
    assert "deadlock_search" in search.instead
    assert hot.find("log_write_up_to") is None


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["--format", "folded"], "--callers"),
        (["--json", "--format", "text"], "cannot use --json"),
        (["--force", "--seconds", "31"], "limited to 30"),
        (["--seconds", "601"], "10m"),
        (["--arg", "6"], "range"),
    ],
)
def test_contradictory_options_are_refused(
    arguments: list[str], word: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["trace", "f", "--pid", "1", *arguments]) == 2
    assert word in capsys.readouterr().err


@pytest.mark.parametrize(
    ("source", "reason"), [("symbol-pack", "no such function in this build"), ("dynsym", "is stripped")]
)
def test_a_symbol_pack_contains_all_functions(source: str, reason: str) -> None:
    file: Any = SimpleNamespace(symbols_from=source, functions=lambda _: [PLACE])
    assert reason in functions._not_found(target(), file, "buf_page_get_gem").what


def test_an_unknown_process_is_refused() -> None:
    assert main(["trace", "f", "--pid", "4194304"]) == NoSuchProcess.exit_code
