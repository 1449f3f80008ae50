"""Without BPF, CPU profiles are taken with perf events. They agree with BPF's profiles, and stop nothing."""

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

SECONDS = 6
FREQUENCY = 499
#: Per-CPU clock events, for all time; or per-thread clock events, for the time in user mode only.
_PER_CPU, _PER_THREAD = denying("bpf"), without_bpf()
_DENIED, _LESS = "BPF denied", "no CAP_BPF, CAP_PERFMON"
RIGHTS = [pytest.param(_PER_CPU, id=_DENIED), pytest.param(_PER_THREAD, id=_LESS)]


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server("mysql-5.6.24") as server:
        yield server


def _both(pid: int, rights: list[str]) -> tuple[dict[str, Any], Profile]:
    """Profile a server without BPF and with BPF at the same time.

    If time in the kernel is not sampled without BPF, it is removed from the profile with BPF.
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
    assert by_perf["tally"]["on_cpu"] >= 0.98 * by_perf["total"]


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
    """Also check the notes, which say how the profile differs without the privileges."""
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
            "profile", "--pid", server.pid, "--seconds", 2, "--json", "--kernel", under=_PER_CPU
        )
    assert result.returncode == 0, result.stderr
    document = json.loads(result.stdout)
    in_kernel = [stack["frames"] for stack in document["stacks"] if stack["frames"][0]["kernel"]]
    assert in_kernel
    assert all(frames[0]["function"] for frames in in_kernel)
    # A thread can be sampled at an instruction from which its stack cannot be unwound.
    assert document["tally"]["on_cpu"] >= 0.98 * document["total"]
    complete = [stack["frames"] for stack in document["stacks"] if set(stack["trust"]) == {"on_cpu"}]
    assert all(frames[-1]["function"] in ("clone3", "__clone", "_start") for frames in complete)


def test_small_rings_are_used_if_locked_memory_is_limited(server: Server) -> None:
    """Without CAP_IPC_LOCK and with RLIMIT_MEMLOCK = 0, the limit is the kernel's perf_event_mlock_kb."""
    less = "-bpf,-perfmon,-sys_admin,-ipc_lock,-sys_resource"
    limited = ["prlimit", "--memlock=0:0", "setpriv", "--bounding-set", less, "--inh-caps", less]
    with Burn(server, 2):
        result = innoscope("profile", "--pid", server.pid, "--seconds", 1, "--json", under=limited)
    assert result.returncode == 0, result.stderr
    document = json.loads(result.stdout)
    assert document["lost"] == 0
    assert document["total"] > 10
