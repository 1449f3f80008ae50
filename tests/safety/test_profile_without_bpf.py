"""Test that CPU profiles without BPF, from perf events, agree with BPF's profiles and stop nothing."""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from live.profiling import on_cpu, one_name, same_top, self_shares, shares
from safety.command import INNOSCOPE, innoscope
from safety.counter import Counter as Disturbances
from safety.privileges import denying, without_bpf
from scale import long
from servers import Server
from workloads import Burn, Oltp

if TYPE_CHECKING:
    from collections.abc import Iterator

    from innoscope.sampling.profile.model import Profile

#: Seconds of a compared profile, long enough for a function's share to vary by only half a percent.
SECONDS = 12
FREQUENCY = 499
#: Command prefix under which per-CPU clock events are available; they sample user time and kernel time.
_PER_CPU = denying("bpf")
#: Command prefix under which only per-thread clock events are available; they sample only user time.
_PER_THREAD = without_bpf()
_DENIED, _LESS = "BPF denied", "no CAP_BPF, CAP_PERFMON"
RIGHTS = [pytest.param(_PER_CPU, id=_DENIED), pytest.param(_PER_THREAD, id=_LESS)]
#: A function of MySQL 5.6 whose frame has two arrays of 8 kB each (btr_path_t, 250 slots).
_WITH_ARRAYS = "btr_estimate_n_rows_in_range"


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server("mysql-5.6.24") as server:
        yield server


def _both(pid: int, rights: list[str]) -> tuple[dict[str, Any], Profile]:
    """Profile a server without BPF and with BPF at the same time.

    If the run without BPF cannot sample kernel time, drop kernel time from the BPF profile, too.
    """
    without_kernel = rights is _PER_THREAD
    command = [*rights, INNOSCOPE, "profile", "--json", "--pid", str(pid)]
    command += ["--seconds", str(SECONDS), "--frequency", str(FREQUENCY)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        by_bpf = on_cpu(pid, SECONDS, FREQUENCY, kernel=without_kernel)
        by_perf = json.loads(process.communicate(timeout=60)[0])
    assert by_perf["method"] == "perf"
    assert by_perf["lost"] == 0
    if without_kernel:
        by_bpf.rows = [row for row in by_bpf.rows if not row.thread.frames[0].kernel]
    return by_perf, by_bpf


def _check_complete(profile: dict[str, Any]) -> None:
    """Check that nearly all stacks of a profile are complete.

    A few are not: a thread can be sampled at an instruction from which its stack cannot be unwound. Stacks
    that end in the middle of a frame of ``_WITH_ARRAYS`` are not counted: perf events do not copy beyond a
    page that was never touched, and the arrays of that frame can have such pages.
    """
    doubtful = [stack for stack in profile["stacks"] if set(stack["trust"]) != {"on_cpu"}]
    cut_in_arrays = sum(
        stack["trust"].get("truncated", 0)
        for stack in doubtful
        if stack["frames"][-1]["function"] == _WITH_ARRAYS
    )
    assert profile["tally"]["on_cpu"] >= 0.98 * (profile["total"] - cut_in_arrays), json.dumps(doubtful)


@pytest.mark.parametrize("rights", RIGHTS)
def test_functions_agree_with_those_by_bpf(server: Server, rights: list[str]) -> None:
    # Per-thread clock events miss the beginning of each time slice: the load must have few context switches.
    load = Burn(server, 2) if rights is _PER_THREAD else Oltp(server, 4)
    with load:
        by_perf, by_bpf = _both(server.pid, rights)
    counts: Counter[str] = Counter()
    for stack in by_perf["stacks"]:
        counts[one_name(stack["frames"][0]["function"] or "?")] += stack["count"]
    perf, bpf = shares(counts), self_shares(by_bpf)
    names = dict.fromkeys((*list(bpf)[:10], *list(perf)[:10]))
    table = "\n".join(f"{name:40} {bpf.get(name, 0):5.2f} {perf.get(name, 0):5.2f}" for name in names)
    print(f"\n{'function':40}   bpf  perf\n{table}")
    assert max(abs(bpf.get(name, 0) - perf.get(name, 0)) for name in names) < 3
    assert same_top(perf, bpf)
    _check_complete(by_perf)


@pytest.mark.parametrize(
    "rights",
    [RIGHTS[0], pytest.param(_PER_THREAD, id=_LESS, marks=long("test_functions_agree_with_those_by_bpf"))],
)
def test_samples_add_up_to_the_cpu_time(server: Server, rights: list[str]) -> None:
    with Burn(server, 2):
        by_perf, by_bpf = _both(server.pid, rights)
    sampled = by_perf["total"] * by_perf["period_ns"] / 1e9 / by_perf["cpu_seconds"]
    of_bpf = sum(row.number for row in by_bpf.rows) * by_bpf.period_ns / 1e9 / by_bpf.cpu_seconds
    print(f"\nsampled {100 * sampled:.1f} % of the CPU time by perf, {100 * of_bpf:.1f} % by BPF")
    assert sampled == pytest.approx(of_bpf if rights is _PER_THREAD else 1, rel=0.05)


@pytest.mark.parametrize("rights", RIGHTS)
def test_nothing_is_stopped(server: Server, rights: list[str]) -> None:
    """Also check the notes, which explain how the profile differs without the privileges."""
    with Burn(server, 2), Disturbances(server.pid) as disturbances:
        result = innoscope("profile", "--pid", server.pid, "--seconds", 1, "--json", under=rights)
    assert result.returncode == 0, result.stderr
    assert disturbances.seen is not None
    assert (disturbances.seen.stopped_threads, disturbances.seen.ptrace_calls) == (0, 0)
    notes = json.loads(result.stdout)["notes"]
    assert "not by BPF" in notes[0]
    assert any("time in the kernel was not sampled" in note for note in notes) == (rights is _PER_THREAD)


def test_kernel_functions_are_shown(server: Server) -> None:
    with Oltp(server, 2):
        result = innoscope(
            "profile", "--pid", server.pid, "--seconds", 4, "--frequency", FREQUENCY, "--json", "--kernel",
            under=_PER_CPU,
        )  # fmt: skip
    assert result.returncode == 0, result.stderr
    document = json.loads(result.stdout)
    in_kernel = [stack["frames"] for stack in document["stacks"] if stack["frames"][0]["kernel"]]
    assert in_kernel
    assert all(frames[0]["function"] for frames in in_kernel)
    _check_complete(document)
    complete = [stack["frames"] for stack in document["stacks"] if set(stack["trust"]) == {"on_cpu"}]
    assert all(frames[-1]["function"] in ("clone3", "__clone", "_start") for frames in complete)


def test_small_rings_are_used_if_locked_memory_is_limited(server: Server) -> None:
    """Drop CAP_IPC_LOCK and set RLIMIT_MEMLOCK to 0; the kernel's perf_event_mlock_kb is then the limit.

    Even at 35 Hz, the profile requests larger rings than the kernel permits. The small ones hold 0.2 s of
    samples.
    """
    less = "-bpf,-perfmon,-sys_admin,-ipc_lock,-sys_resource"
    limited = ["prlimit", "--memlock=0:0", "setpriv", "--bounding-set", less, "--inh-caps", less]
    with Burn(server, 2):
        result = innoscope(
            "profile", "--pid", server.pid, "--seconds", 1, "--frequency", 35, "--json", under=limited
        )
    assert result.returncode == 0, result.stderr
    document = json.loads(result.stdout)
    assert document["lost"] == 0
    assert document["total"] > 10
