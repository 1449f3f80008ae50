"""Test that profiles agree with the kernel's accounting and with perf."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest

from innoscope.sampling.model import Trust
from innoscope.sampling.profile.model import RUNNABLE
from innoscope.sampling.profile.offcpu import OffCpuProfiler
from innoscope.sampling.profile.report import report
from innoscope.sampling.profile.run import run
from innoscope.sampling.render import encode
from innoscope.target.discover import find_one
from live.profiling import Perf, check_complete, check_sums, on_cpu, same_top, schedstat, self_shares
from scale import few, long, repetitions
from servers import Server
from workloads import Burn, Fsync, Oltp, RowLock

if TYPE_CHECKING:
    from innoscope.sampling.profile.model import Profile
    from live.profiling import Schedstat

SECONDS = 3.0
#: Number of consecutive off-CPU profiles without load and under each load.
REPEATS = repetitions(quick=1, full=3)
#: Maximum seconds of a test, including the start of the server and the evaluation of each profile.
TIMEOUT_S = 120 + 3 * REPEATS * 4 * SECONDS
CLIENTS = 16
_SOUND = {Trust.EXACT, Trust.ON_CPU}
#: Expected waits of a client that commits single rows.
_COMMITTING = {"fsync_redo", "redo_write_wait", "group_commit", "fsync_data", "mutex_wait", "idle"}


class _Accounted(OffCpuProfiler):
    """A profiler that also reads the scheduler's times, immediately after it begins and before it finishes.

    To open the profiler and to process the samples can take seconds, which must not be included.
    """

    before: Schedstat
    after: Schedstat

    def begin(self) -> None:
        super().begin()
        self.before = schedstat(self.target.pid)

    def finish(self) -> Profile:
        self.after = schedstat(self.target.pid)
        return super().finish()


def _profiled(server: Server) -> tuple[Profile, Schedstat, Schedstat]:
    target = find_one(server.pid)
    profiler = _Accounted(target)
    profile = run(profiler, target, SECONDS)[0]
    return profile, profiler.before, profiler.after


def _waits(profile: Profile, tids: set[int]) -> Counter[str]:
    waits: Counter[str] = Counter()
    for row in profile.rows:
        if row.thread.tid in tids:
            waits[row.thread.wait] += row.number
    return waits


@pytest.mark.timeout(TIMEOUT_S)
@pytest.mark.parametrize(
    "name", few(("mysql-5.6.24", "mariadb-11.4.5"), "mysql-5.6.24", reason="the kernel is the same")
)
def test_waits_and_cpu_time_add_up_to_wall_time(name: str) -> None:
    """Check threads that are idle, threads that commit, and threads that wait for a row."""
    with Server(name, options=Fsync.server_options) as server:
        for _ in range(REPEATS):
            profile, before, after = _profiled(server)
            check_sums(profile, before, after)

        own = set(schedstat(server.pid))
        with Fsync(server, CLIENTS):
            for _ in range(REPEATS):
                profile, before, after = _profiled(server)
                check_sums(profile, before, after)
                check_complete(profile, _SOUND)
                waits = _waits(profile, set(before) - own)
                committing = sum(waits[wait] for wait in _COMMITTING)
                assert committing > 0.5 * (waits.total() - waits[RUNNABLE]), waits
                assert waits["fsync_redo"] + waits["redo_write_wait"] + waits["group_commit"] > 0, waits

        with RowLock(server, CLIENTS):
            for _ in range(REPEATS):
                profile, before, after = _profiled(server)
                check_sums(profile, before, after)
                check_complete(profile, _SOUND)
                waits = _waits(profile, set(before))
                assert waits["row_lock"] / 1e6 == pytest.approx(CLIENTS * profile.seconds, rel=0.05), waits


def test_cpu_profile_agrees_with_perf() -> None:
    """Check that functions have the same shares as in perf's profile of the same period.

    Stacks must be complete. ``same_top`` needs about 10,000 samples: with 3,500, the functions near rank 10
    differ by chance in one of 50 to 100 runs.
    """
    with Server("mysql-5.6.24") as server, Oltp(server, 4), Perf(server.pid, 499, by_cpu=True) as perf:
        profile = on_cpu(server.pid, 18.0, 499, kernel=True)
    ours, theirs = self_shares(profile), perf.shares
    top = list(theirs)[:10]
    sound = sum(row.number for row in profile.rows if row.thread.trust in _SOUND)
    total = sum(row.number for row in profile.rows)
    worst = max(abs(ours.get(name, 0) - theirs.get(name, 0)) for name in {*top, *list(ours)[:10]})
    names = dict.fromkeys((*top, *list(ours)[:10]))
    table = "\n".join(f"{name:40} {theirs.get(name, 0):5.2f} {ours.get(name, 0):5.2f}" for name in names)
    print(f"\n{'function':40}  perf  ours\n{table}")
    assert worst < 3
    assert same_top(ours, theirs)
    assert sound >= 0.98 * total
    assert len(encode(report(profile), "pprof")) < perf.bytes / 10


@long("perf's samples are compared in make test")
def test_number_of_samples_matches_the_cpu_time() -> None:
    """Check that there is one sample for each period of CPU time.

    This holds for CPU-bound threads. If threads sleep and wake thousands of times per second, the kernel's
    clock samples them 5 to 12 % too often on a virtual machine. perf has the same error.
    """
    with Server("mysql-5.6.24") as server, Burn(server, 2):
        profile = on_cpu(server.pid, SECONDS, 499)
    sampled = sum(row.number for row in profile.rows) * profile.period_ns / 1e9
    assert profile.lost == 0
    assert sampled == pytest.approx(profile.cpu_seconds, rel=0.02)
