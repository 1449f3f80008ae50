"""Test that wait profiles without BPF, from perf events, agree with BPF's profiles and stop nothing."""

from __future__ import annotations

import json
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from innoscope.sampling.model import Trust
from innoscope.sampling.profile.model import RUNNABLE
from innoscope.sampling.profile.offcpu import OffCpuProfiler
from innoscope.sampling.profile.run import POLL_S, run
from innoscope.sampling.profile.wait_events import BpfEvents, PerfEvents
from innoscope.target.discover import find_one
from live.profiling import check_complete, check_sums, schedstat
from safety.churn import churn
from safety.command import assert_one_clear_error, innoscope
from safety.counter import Counter as Disturbances
from safety.privileges import denying, without, without_bpf
from servers import Server
from workloads import Fsync, Idle, RowLock

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from innoscope.sampling.model import Frame
    from innoscope.sampling.profile.model import Profile

SECONDS = 4.0
CLIENTS = 16
THREADS = 1000
#: Trust levels of complete stacks. Snapshots without BPF infer the frame pointer.
_SOUND = {Trust.EXACT, Trust.INFERRED}
#: Command prefix under which per-CPU events are available; they sample stacks.
_PER_CPU = denying("bpf")
#: Command prefix under which only per-thread events are available; stacks come from snapshots.
_PER_THREAD = without_bpf()
RIGHTS = [
    pytest.param(_PER_CPU, id="BPF denied"),
    pytest.param(_PER_THREAD, id="no CAP_BPF, CAP_PERFMON"),
]


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    options = (*Fsync.server_options, "--thread-cache-size=0", f"--max-connections={2 * THREADS}")
    with Server("mysql-5.6.24", options=options) as server:
        yield server


def _by_perf(pid: int, seconds: float) -> Profile:
    target = find_one(pid)
    events = PerfEvents(target, kernel=False)
    return run(OffCpuProfiler(target, opened=(events, ())), target, seconds)[0]


def _are_exact(notes: Iterable[str]) -> bool:
    """Return whether no context switch record was lost. On a busy host, stack records may be lost."""
    return not any("times are inexact" in note for note in notes)


def _json(server: Server, rights: list[str], seconds: float = 2, *, exact: bool = True) -> dict[str, Any]:
    result = innoscope(
        "profile", "--off-cpu", "--pid", server.pid, "--seconds", seconds, "--json", under=rights
    )
    assert result.returncode == 0, result.stderr
    document: dict[str, Any] = json.loads(result.stdout)
    assert document["method"] == "perf"
    assert _are_exact(document["notes"]) or not exact
    return document


def test_waits_and_cpu_time_add_up_to_wall_time(server: Server) -> None:
    """Check threads that are idle, threads that commit, and threads that wait for a row."""
    before = schedstat(server.pid)
    profile = _by_perf(server.pid, 2)
    check_sums(profile, before, schedstat(server.pid))
    own = set(before)
    for load in (Fsync(server, CLIENTS), RowLock(server, CLIENTS)):
        with load:
            before = schedstat(server.pid)
            profile = _by_perf(server.pid, SECONDS)
            check_sums(profile, before, schedstat(server.pid))
        assert _are_exact(profile.notes)
        check_complete(profile, _SOUND)
    clients = set(before) - own
    waits = Counter({row.thread.wait: row.number for row in profile.rows if row.thread.tid in clients})
    assert waits["row_lock"] > 0
    row_lock = sum(row.number for row in profile.rows if row.thread.wait == "row_lock")
    assert row_lock / 1e6 == pytest.approx(CLIENTS * profile.seconds, rel=0.05)


def _shares(profile: Profile, tids: set[int]) -> dict[str, float]:
    """Return each wait class's share of the waiting time in percent.

    Perf events do not record wakeups, so runnable time is counted in the wait class of its stack.
    """
    rows = [row for row in profile.rows if row.thread.tid in tids]
    classes: dict[tuple[Frame, ...], str] = {
        row.thread.frames: row.thread.wait for row in rows if row.thread.wait != RUNNABLE
    }
    counts: Counter[str] = Counter()
    for row in rows:
        frames, wait = row.thread.frames, row.thread.wait
        counts[classes.get(frames[1:], RUNNABLE) if wait == RUNNABLE else wait] += row.number
    return {wait: 100 * count / counts.total() for wait, count in counts.items()}


def _at_the_same_time(pid: int) -> list[Profile]:
    """Return two concurrent profiles: one with perf events and one with BPF."""
    target = find_one(pid)
    sources = (PerfEvents(target, kernel=False), BpfEvents(target, kernel=False))
    profilers = [OffCpuProfiler(target, opened=(source, ())) for source in sources]
    for profiler in profilers:
        profiler.begin()
    ended = time.monotonic() + SECONDS
    while time.monotonic() < ended:
        time.sleep(POLL_S)
        for profiler in profilers:
            profiler.poll()
    return [profiler.finish() for profiler in profilers]


def test_wait_classes_agree_with_those_by_bpf(server: Server) -> None:
    own = set(schedstat(server.pid))
    with Fsync(server, CLIENTS):
        clients = set(schedstat(server.pid)) - own
        by_perf, by_bpf = _at_the_same_time(server.pid)
    perf, bpf = _shares(by_perf, clients), _shares(by_bpf, clients)
    names = sorted({*perf, *bpf}, key=lambda name: -bpf.get(name, 0))
    table = "\n".join(f"{name:20} {bpf.get(name, 0):5.2f} {perf.get(name, 0):5.2f}" for name in names)
    print(f"\n{'class':20}   bpf  perf\n{table}")
    assert max(abs(bpf.get(name, 0) - perf.get(name, 0)) for name in names) < 5


@pytest.mark.parametrize("rights", RIGHTS)
def test_the_command_says_how_it_measured(server: Server, rights: list[str]) -> None:
    """Also check that the times add up, that most stacks are known, and that nothing is stopped."""
    with Fsync(server, CLIENTS), Disturbances(server.pid) as disturbances:
        document = _json(server, rights, SECONDS)
    assert disturbances.seen is not None
    assert (disturbances.seen.stopped_threads, disturbances.seen.ptrace_calls) == (0, 0)
    off = sum(thread["blocked_ns"] + thread["runnable_ns"] for thread in document["threads"])
    assert document["total"] * 1000 == pytest.approx(off, rel=0.01)
    for thread in document["threads"]:
        wall = thread["running_ns"] + thread["blocked_ns"] + thread["runnable_ns"]
        assert wall == pytest.approx(document["seconds"] * 1e9, rel=0.05), thread
    blocked = {wait: count for wait, count in document["waits"].items() if wait != RUNNABLE}
    without_stack = blocked.get("other", 0) / sum(blocked.values())
    print(f"\n{100 * without_stack:.1f} % of the blocked time without a stack")
    assert without_stack <= (0.02 if rights is _PER_CPU else 0.05)
    notes = document["notes"]
    assert "not by BPF" in notes[0]
    assert "wakeups are not recorded" in notes[1]
    assert any("all stacks come from snapshots" in note for note in notes) == (rights is _PER_THREAD)


@pytest.mark.parametrize("rights", RIGHTS)
def test_a_thousand_idle_threads_are_profiled(server: Server, rights: list[str]) -> None:
    with Idle(server, THREADS):
        document = _json(server, rights)
    assert len(document["threads"]) >= THREADS
    assert document["waits"]["idle"] / 1e6 >= 0.99 * THREADS * document["seconds"]


def test_a_thousand_idle_threads_cost_little(server: Server) -> None:
    with Idle(server, THREADS):
        began = time.process_time()
        profile = _by_perf(server.pid, 2)
        used = time.process_time() - began
    print(f"\n{used:.2f} s of CPU for {len(profile.threads)} threads in {profile.seconds:.1f} s")
    assert _are_exact(profile.notes)
    assert used < 2


def test_threads_that_start_and_end_meanwhile_are_profiled(server: Server) -> None:
    with churn(server):
        profile = _by_perf(server.pid, 2)
    rows: Counter[int] = Counter()
    for row in profile.rows:
        rows[row.thread.tid] += row.number * 1000
    assert len(profile.threads) > 100
    for thread in profile.threads:
        assert thread.wall_ns <= profile.seconds * 1.01e9 or thread.tid == 0


def test_small_rings_are_used_if_locked_memory_is_limited(server: Server) -> None:
    """Drop CAP_IPC_LOCK and set RLIMIT_MEMLOCK to 0; the kernel's perf_event_mlock_kb is then the limit."""
    limit = ["prlimit", "--memlock=0:0"]
    with Fsync(server, CLIENTS):
        for capabilities in (("bpf",), ("bpf", "perfmon")):
            less = without(*capabilities, "sys_admin", "ipc_lock", "sys_resource")
            # On a busy host, a small ring may be full before it is read. The report says so.
            document = _json(server, [*limit, *less], exact=False)
            lost = any("records were lost" in note for note in document["notes"])
            assert lost == (document["lost"] > 0)
            assert document["waits"]["redo_write_wait"] > 0


def test_without_perf_events_waits_are_refused(server: Server) -> None:
    rights = denying("bpf", "perf_event_open")
    result = innoscope("profile", "--off-cpu", "--pid", server.pid, "--seconds", 1, under=rights)
    assert_one_clear_error(result, 6, "cannot profile off-CPU time", "without BPF: opening perf events")
