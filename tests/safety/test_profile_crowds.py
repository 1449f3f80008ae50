"""Profiles of servers with very many threads, and with threads that come and go."""

from __future__ import annotations

import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from live.profiling import off_cpu, on_cpu
from scale import long
from servers import Keeper, Server
from workloads import Idle

if TYPE_CHECKING:
    from innoscope.sampling.profile.model import Profile

THREADS = 1000
SECONDS = 2.0
CHURNERS = 4


def _rows_are_the_threads_time(profile: Profile) -> None:
    rows: Counter[int] = Counter()
    for row in profile.rows:
        rows[row.thread.tid] += row.number * 1000
    for thread in profile.threads:
        off = thread.blocked_ns + thread.runnable_ns
        assert rows[thread.tid] == pytest.approx(off, rel=0.01, abs=2e5), thread
        assert thread.wall_ns <= profile.seconds * 1.01e9 or thread.tid == 0


@long("threads that come and go are in make test")
def test_a_thousand_idle_threads() -> None:
    """All of them are there, for all of the time, and it costs us and the ring next to nothing."""
    with Server("mysql-5.6.24") as server, Idle(server, THREADS):
        began = time.process_time()
        profile = off_cpu(server.pid, SECONDS)
        used = time.process_time() - began
    waits: Counter[str] = Counter()
    for row in profile.rows:
        waits[row.thread.wait] += row.number
    print(f"\n{len(profile.threads)} threads, {profile.records} records, {used:.2f} s of CPU time")
    _rows_are_the_threads_time(profile)
    assert waits["idle"] / 1e6 >= 0.99 * THREADS * profile.seconds
    assert profile.lost == 0
    assert used < 2


def test_threads_that_come_and_go() -> None:
    """Each connection is a new thread. Those that began and ended meanwhile add up, too."""
    churn = Path(__file__).with_name("churn_main.py")
    with Server("mysql-5.6.24", options={"thread_cache_size": 0}) as server, Keeper() as keeper:
        process = subprocess.Popen(
            [sys.executable, str(churn), str(server.socket), str(CHURNERS), "0", "60"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        keeper.watch(process.pid)
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        waiting = off_cpu(server.pid, SECONDS)
        running = on_cpu(server.pid, SECONDS, 499)
        process.kill()
        process.communicate()
    print(f"\n{len(waiting.threads)} threads in {SECONDS:.0f} s")
    _rows_are_the_threads_time(waiting)
    assert len(waiting.threads) > 100
    assert {row.thread.tid for row in running.rows} - {thread.tid for thread in waiting.threads}
    sound = sum(row.number for row in running.rows if row.thread.trust.value == "on_cpu")
    # A thread has no stack yet when it is born, and no memory any more when it dies: here all do both.
    assert sound >= 0.85 * sum(row.number for row in running.rows)
