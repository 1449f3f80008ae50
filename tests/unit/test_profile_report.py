"""Profile reports have the right units, filters, formats and headline."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from innoscope._native import ThreadTimes
from innoscope.common.errors import KernelUnable
from innoscope.sampling.fold import Filter
from innoscope.sampling.model import Frame, Thread, Trust
from innoscope.sampling.profile import report as reporting
from innoscope.sampling.profile.model import MICROSECONDS, SAMPLES, Profile, ProfileRow
from innoscope.sampling.profile.setup import perf_ring_bytes, ring_bytes
from innoscope.sampling.profile.wait_events import MAX_STACKS_PER_S, StackLimit
from innoscope.sampling.render import encode, render
from innoscope.target.container import require_host_pids
from unit.snapshots import target

if TYPE_CHECKING:
    from pathlib import Path

_FRAMES = tuple(Frame(name, "mysqld", 1) for name in ("leaf", "middle", "start_thread"))


def _thread(tid: int, wait: str, trust: Trust = Trust.EXACT) -> Thread:
    return Thread(tid, tid, "mysqld", "S", trust, wait, _FRAMES)


def on_cpu() -> Profile:
    rows = [
        ProfileRow(_thread(1, "on_cpu", Trust.ON_CPU), 98),
        ProfileRow(_thread(2, "spin", Trust.TRUNCATED), 2),
    ]
    return Profile(target(), SAMPLES, 1e9, 10.0, rows, 100, 1000, period_ns=10_101_010, cpu_seconds=1.01)


def off_cpu() -> Profile:
    rows = [ProfileRow(_thread(1, "row_lock"), 9_000_000, 3), ProfileRow(_thread(1, "runnable"), 500_000, 3)]
    threads = [ThreadTimes(1, "mysqld", 500_000_000, 9_000_000_000, 500_000_000)]
    return Profile(target(), MICROSECONDS, 1e9, 10.0, rows, 6, 1000, threads=threads, seen_ns=9_500_000_000)


def test_the_headline_of_a_cpu_profile_gives_shares_and_trust() -> None:
    line = next(iter(render(reporting.report(on_cpu()), "text")))
    assert "100 samples in 10.0 s" in line
    assert "98.0 % on CPU, 2.0 % mutex/rwlock spin" in line
    assert "98.0 % with a complete stack" in line
    assert "not stopped" in line


def test_a_note_gives_the_number_of_lost_records() -> None:
    """Check that the note covers all causes: off-CPU, the map of threads may be full, too."""
    assert list(reporting.report(replace(off_cpu(), lost=7)).notes) == [
        "7 records were lost: a buffer or a map was full"
    ]


def test_the_headline_of_an_off_cpu_profile_gives_times() -> None:
    line = next(iter(render(reporting.report(off_cpu()), "text")))
    assert "1 threads in 10.0 s, 10.0 s in total: 0.50 s on a CPU, 0.50 s ready to run, 9.0 s blocked" in line
    assert "94.7 % row lock" in line
    assert "100.0 % of the time in waits whose own stack was captured" in line


def test_each_format_has_the_right_unit() -> None:
    made = reporting.report(off_cpu())
    text = list(render(made, "text"))
    assert any(line.split()[:3] == ["9,000.0", "94.7", "%"] for line in text), text
    assert "start_thread;middle;leaf 9500000" in list(render(made, "folded"))
    scope = json.loads("".join(render(made, "speedscope")))
    assert {profile["unit"] for profile in scope["profiles"]} == {"microseconds"}
    assert "9,500.0" in next(line for line in render(made, "tree") if "all ms" in line)
    assert "microseconds" in "".join(render(made, "html"))
    assert encode(made, "pprof")[:2] == b"\x1f\x8b"
    assert any("9,000.0 of 9,500.0 ms" in line for line in render(made, "text", by="thread"))
    assert any("row_lock" in line for line in render(made, "text", by="wait"))


def test_a_filter_limits_what_is_shown_but_not_the_total() -> None:
    made = reporting.report(off_cpu(), Filter(("row_lock",)))
    assert (made.shown, made.threads) == (9_000_000, 9_500_000)
    assert "showing 94.7 %" in made.headline or "showing 94.7 %" in next(iter(render(made, "text")))


def test_counts_in_json_add_up_to_the_total() -> None:
    profile = off_cpu()
    document = json.loads(reporting.line(profile, reporting.report(profile)))
    assert document["profile"] == "off-cpu"
    assert sum(stack["count"] for stack in document["stacks"]) == document["total"] == 9_500_000
    assert document["threads"][0]["running_ns"] == 500_000_000
    assert document["cpu_seconds"] is None


def test_the_method_is_reported() -> None:
    profile = replace(on_cpu(), method="perf")
    made = reporting.report(profile)
    assert made.method == "perf"
    assert reporting.document(profile, made)["method"] == "perf"


def test_stack_limit_keeps_the_rate_near_the_target() -> None:
    limit = StackLimit()
    before = limit.value
    assert not limit.adjust(0.1, 10**6)
    assert limit.adjust(1.0, 8 * MAX_STACKS_PER_S)
    assert limit.value == before // 4
    for second in range(2, 40):
        limit.adjust(second, 8 * MAX_STACKS_PER_S)
    assert limit.value == before


def test_the_size_of_the_ring_buffer_is_bounded() -> None:
    assert ring_bytes(99) == 4 << 20
    assert ring_bytes(10**9) == 64 << 20
    assert perf_ring_bytes(99, 2) == 2 << 20
    assert perf_ring_bytes(10**9, 4) == 16 << 20
    assert perf_ring_bytes(10**9, 1024) == 512 << 10


def test_a_pid_namespace_of_its_own_is_refused(tmp_path: Path) -> None:
    (tmp_path / "pid").touch()
    with pytest.raises(KernelUnable, match="its own process ids"):
        require_host_pids("profile", str(tmp_path / "pid"))
