"""Test the parts of a latency profile that need no server, such as its text, its JSON and its refusals."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import pytest

from innoscope.cli.main import main
from innoscope.common.errors import NoSuchProcess
from innoscope.probes.catalog import default_catalog
from innoscope.probes.latency import document, text
from innoscope.probes.latency.model import NO_STACK, LatencyResult
from innoscope.probes.latency.run import affordable_stacks, choose_every, refusal
from innoscope.probes.latency.sampler import Digests, times
from innoscope.probes.latency.shares import BlockedStack, StatementLatency
from innoscope.probes.trace.model import Cost
from unit.snapshots import target

if TYPE_CHECKING:
    from innoscope._native import SampledStatement

MS = 1_000_000
COST = Cost(call_s=10e-6, stack_s=20e-6, cpus=2)
TEXTS = {"d1": "UPDATE `t1` SET `b` = ?", "d2": "SELECT ?", "(Ping)": "(Ping)"}


def statement(digest: str, **times: float) -> StatementLatency:
    parts = {wait: round(time * MS) for wait, time in times.items()}
    return StatementLatency(digest, sum(parts.values()), parts)


def seen(*statements: StatementLatency, **changes: Any) -> LatencyResult:
    made = LatencyResult(
        COST, seconds=10.0, probed_s=10.5, every=2, total=2 * len(statements), hits=2_100, stacks=300
    )
    made.statements, made.texts = list(statements), TEXTS
    for name, value in changes.items():
        setattr(made, name, value)
    return made


MIX = (
    *[statement("d2", on_cpu=1)] * 190,
    *[statement("d1", on_cpu=1, row_lock=80, **{NO_STACK: 10})] * 9,
    statement("(Ping)", on_cpu=0.1),
)


def shown(made: LatencyResult, limit: int = text.DIGESTS) -> list[str]:
    return list(text.lines(made, target(), limit))


def test_the_text_explains_p99() -> None:
    lines = shown(seen(*MIX))
    assert lines[0].startswith(
        "200 of 400 statements in 10.0 s: p50 1.00 ms, p95 1.00 ms, p99 91.0 ms, max 91.0 ms"
    )
    assert "cost 0.13% of the server's 2 CPUs (10.0 µs per statement, 20.0 µs per stack)" in lines[0]
    assert lines[0].endswith("not stopped")
    assert lines[2] == (
        "p99 is 91.0 ms; statements that slow take 86.0 ms more than the mean: 89 % of that is row lock, "
        "11 % off the CPU, stack not taken"
    )
    [row] = [line for line in lines if line.endswith("  row lock")]
    assert row.split()[0] == "3.600"
    assert row.split()[1:6:2] == ["71", "89", "89"]


def test_the_digests_with_the_slowest_statements_come_first() -> None:
    lines = shown(seen(*MIX))
    digests = lines[lines.index("") :]
    assert [line.split("# ")[1] for line in digests if "# " in line] == [
        "UPDATE `t1` SET `b` = ?", "SELECT ?", "(Ping)",
    ]  # fmt: skip
    first = next(line for line in lines if line.startswith("      9 "))
    assert first.split()[:6] == ["9", "9", "91.00", "91.00", "91.00", "91.00"]
    assert first.endswith("88 % row lock, 11 % off the CPU, stack not taken")
    assert shown(seen(*MIX), limit=1)[-1] == "… 2 more digests"


def test_wait_classes_with_tiny_shares_are_not_shown() -> None:
    tiny = [statement("d2", on_cpu=1, mutex_wait=0.001, page_read=0.001)] * 10
    lines = shown(seen(*MIX, *tiny))
    assert "… 2 more wait classes" in lines
    assert not any(line.startswith("  0.000") for line in lines)


def test_names_in_digests_are_escaped() -> None:
    made = seen(*MIX, texts={"d1": "SELECT `\x1b[31m\n`" + "x" * 200})
    lines = shown(made, limit=1)
    assert not any("\x1b" in line or "\n" in line for line in lines)
    assert any("\\x1b[31m\\n" in line and line.endswith("…") for line in lines)


def test_notes_state_what_is_missing() -> None:
    lines = shown(seen(*MIX[:50], unfinished=3, lost=7, ended="interrupted after 1.0 of 10 s"))
    notes = [line for line in lines if line.startswith("note: ")]
    assert notes[0] == "note: interrupted after 1.0 of 10 s"
    assert [note.split()[1] for note in notes[1:]] == ["with", "3", "7"]
    lines = shown(seen(*MIX, unfinished=1, lost=1))
    assert lines[2:4] == [
        "note: 1 sampled statement had not ended, and is not included",
        "note: 1 record was lost: a buffer or a map was full",
    ]
    lines = shown(seen())
    assert lines[-1].startswith("note: no sampled statement ended")


def test_the_stacks_of_slow_statements_are_shown_on_request() -> None:
    lock, write = (
        BlockedStack("row_lock", ("pthread_cond_wait", "lock_wait", "row_upd_step")),
        BlockedStack("redo_write_wait", ("log_write_up_to",)),
    )
    fast = StatementLatency("d2", 2 * MS, {"redo_write_wait": 2 * MS}, {write: 2 * MS})
    slow = StatementLatency("d1", 80 * MS, {"row_lock": 80 * MS}, {lock: 60 * MS, write: 20 * MS})
    made = seen(*[fast] * 98, slow, slow)
    assert not any("lock_wait" in line for line in shown(made))
    lines = list(text.lines(made, target(), stacks=True))
    assert [line.split() for line in lines[-2:]] == [
        ["60.000", "row", "lock", "lock_wait,row_upd_step"],
        ["20.000", "redo", "write", "wait", "log_write_up_to"],
    ]
    assert list(text.lines(made, target(), 1, stacks=True))[-1] == "… 1 more stack"
    lines = list(text.lines(made, target(), stacks=True, full=True))
    assert lines[-2].split()[-1] == "pthread_cond_wait,lock_wait,row_upd_step"
    found = json.loads(document.line(made, target()))["stacks"]
    functions = ["pthread_cond_wait", "lock_wait", "row_upd_step"]
    assert found[0] == {"wait": "row_lock", "ns": 60 * MS, "functions": functions}


def test_equal_statements_have_no_excess() -> None:
    lines = shown(seen(*MIX[:190]))
    assert "p99 is 1.00 ms, and all statements took equally long" in lines
    assert any(line.endswith("100 % on CPU") for line in lines)


def test_the_document_has_all_shares() -> None:
    found = json.loads(document.line(seen(*MIX), target()))
    assert (found["schema"], found["every"], found["statements"]) == (1, 2, 400)
    assert found["latency"]["count"] == 200
    assert (found["latency"]["p99_ns"], found["latency"]["tail_count"]) == (91 * MS, 9)
    waits = {one["wait"]: one for one in found["latency"]["waits"]}
    assert set(waits) == {"row_lock", NO_STACK, "on_cpu"}
    for share in ("mean", "variance", "excess"):
        assert sum(one[share] for one in waits.values()) == pytest.approx(1, abs=1e-4)
    assert [one["text"] for one in found["digests"]] == [TEXTS["d1"], TEXTS["d2"], TEXTS["(Ping)"]]
    assert found["cost"] == {
        "statement_ns": 10_000, "stack_ns": 20_000, "hits": 2_100, "stacks": 300, "seconds": 0.027, "cpus": 2,
    }  # fmt: skip
    assert json.loads(document.line(seen(), target()))["latency"] is None


@dataclass
class Taken:
    """A stand-in for ``_native.SampledStatement`` that has only its times."""

    began: int
    ended: int
    blocked_ns: int
    runnable_ns: int


def test_the_times_of_a_statement_add_up_to_its_duration() -> None:
    stacks = {
        BlockedStack("row_lock", ("a",)): 30,
        BlockedStack("row_lock", ("b",)): 10,
        BlockedStack(NO_STACK, ()): 5,
    }
    taken = cast("SampledStatement", Taken(began=100, ended=200, blocked_ns=45, runnable_ns=15))
    assert times(taken, stacks) == {"on_cpu": 40, "runnable": 15, "row_lock": 40, NO_STACK: 5}
    taken = cast("SampledStatement", Taken(began=100, ended=150, blocked_ns=45, runnable_ns=15))
    assert sum(times(taken, stacks).values()) == 50, "the last wait ended a moment later"
    taken = cast("SampledStatement", Taken(began=100, ended=150, blocked_ns=0, runnable_ns=0))
    assert times(taken, {}) == {"on_cpu": 50}


@dataclass
class Command:
    """A stand-in for ``_native.SampledStatement``, without its thread id and waits."""

    command: int = 23
    digest: tuple[str, str] | None = None
    prepared: tuple[int, int] | None = None
    began: int = 0
    ended: int = 10
    blocked_ns: int = 0
    runnable_ns: int = 0


def test_prepared_statements_get_the_digest_of_another_execution() -> None:
    known = ("SELECT ?", "SELECT ?")
    commands = [
        Command(command=3, digest=known), Command(prepared=(9, 1)), Command(prepared=(9, 2)), Command(),
        Command(command=14), Command(command=3), Command(command=99),
    ]  # fmt: skip
    digests = Digests({14: "Ping", 23: "Execute"})
    statements = [digests.statement(cast("SampledStatement", one), {}) for one in commands]
    statements = digests.resolve(statements, {(9, 1): known}.get)
    assert [digests.texts.get(one.digest, one.digest) for one in statements] == [
        "SELECT ?", "SELECT ?", "(Execute)", "(Execute)", "(Ping)", "?", "(command 99)",
    ]  # fmt: skip
    assert {one.wall_ns for one in statements} == {10}


def test_fewer_statements_are_sampled_if_their_stacks_would_exceed_the_budget() -> None:
    assert affordable_stacks(COST, rate=0, budget=0.01) == pytest.approx(1_000)
    assert affordable_stacks(COST, rate=1_500, budget=0.01) == pytest.approx(250)
    assert affordable_stacks(COST, rate=5_000, budget=0.01) == 10
    assert choose_every(500, waits=2, stacks_per_s=1_000, seconds=10) == 1
    assert choose_every(1_200, waits=5, stacks_per_s=1_000, seconds=10) == 6
    assert choose_every(0, waits=0, stacks_per_s=10, seconds=10) == 1
    assert choose_every(50_000, waits=0, stacks_per_s=2_000, seconds=10) == 50
    assert choose_every(1_000, waits=0, stacks_per_s=2_000, seconds=3_600) == 72


def test_a_refusal_gives_rate_cost_and_the_next_command() -> None:
    error = refusal(4_000, 0.02, 0.01, COST)
    assert error.exit_code == 14
    assert "4,000 statements per second" in error.what
    assert "2.0% of its 2 CPUs; the budget is 1.0%" in error.what
    assert error.remedy is not None
    assert "--budget 0.03" in error.remedy
    assert "innoscope profile --off-cpu" in error.remedy


@pytest.mark.parametrize(
    ("flavor", "version", "command", "text_at"),
    [
        ("mysql", (5, 5, 9), 0, None),
        ("mysql", (5, 6, 24), 0, None),
        ("mysql", (5, 7, 22), 2, 0),
        ("mysql", (9, 7, 4), 2, 0),
        ("mariadb", (10, 11, 18), 0, None),
    ],
)
def test_the_catalog_knows_the_arguments(
    flavor: str, version: tuple[int, ...], command: int, text_at: int | None
) -> None:
    found = default_catalog().command(flavor, version)
    assert found is not None
    assert (found.command.arg, found.text.at) == (command, text_at)
    assert (found.thd.arg == 0) == (command == 2)
    assert found.prepared.at == 0


@pytest.mark.parametrize("arguments", [["0.1s"], ["2h"], ["soon"], ["--budget", "2"], ["--limit", "0"]])
def test_invalid_arguments_are_usage_errors(arguments: list[str]) -> None:
    assert main(["latency", "--pid", "1", *arguments]) == 2


def test_a_process_that_does_not_exist_is_reported() -> None:
    assert main(["latency", "--pid", "4194304"]) == NoSuchProcess.exit_code
