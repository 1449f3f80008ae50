"""Test profiles of servers with very many threads, and while threads start and exit continually."""

from __future__ import annotations

import time
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from live.profiling import off_cpu, on_cpu
from safety.churn import churn
from scale import long
from servers import Server
from workloads import Idle

if TYPE_CHECKING:
    from innoscope.sampling.profile.model import Profile

THREADS = 1000
SECONDS = 2.0


def _assert_rows_add_up(profile: Profile) -> None:
    rows: Counter[int] = Counter()
    for row in profile.rows:
        rows[row.thread.tid] += row.number * 1000
    for thread in profile.threads:
        off = thread.blocked_ns + thread.runnable_ns
        assert rows[thread.tid] == pytest.approx(off, rel=0.01, abs=2e5), thread
        assert thread.wall_ns <= profile.seconds * 1.01e9 or thread.tid == 0


@long("thread churn is in make test")
def test_a_thousand_idle_threads_are_profiled_at_little_cost() -> None:
    with Server("mysql-5.6.24") as server, Idle(server, THREADS):
        began = time.process_time()
        profile = off_cpu(server.pid, SECONDS)
        used = time.process_time() - began
    waits: Counter[str] = Counter()
    for row in profile.rows:
        waits[row.thread.wait] += row.number
    _assert_rows_add_up(profile)
    assert waits["idle"] / 1e6 >= 0.99 * THREADS * profile.seconds
    assert profile.lost == 0
    assert used < 2


def test_threads_that_start_and_end_meanwhile_are_profiled() -> None:
    """Create a new thread for each connection, and check that the times of each thread add up."""
    with Server("mysql-5.6.24", options={"thread_cache_size": 0}) as server, churn(server):
        waiting = off_cpu(server.pid, SECONDS)
        running = on_cpu(server.pid, 3 * SECONDS, 499)  # many samples, whose trust is counted
    _assert_rows_add_up(waiting)
    assert len(waiting.threads) > 100
    assert {row.thread.tid for row in running.rows} - {thread.tid for thread in waiting.threads}
    complete = sum(row.number for row in running.rows if row.thread.trust.value == "on_cpu")
    # A starting thread has no stack yet, and an exiting thread no longer has memory. Here, all threads start
    # and exit during the profile.
    assert complete >= 0.85 * sum(row.number for row in running.rows)
