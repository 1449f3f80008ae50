"""Test a server with more threads than one snapshot copies.

No thread may be missing, cut stacks must be marked, and memory must not grow.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import snapshot_methods
from innoscope._native import Process
from workloads.many_threads import ManyThreads

if TYPE_CHECKING:
    from collections.abc import Iterator

    from innoscope._native import RawSnapshot

THREADS = 5_000
#: Bytes of stacks that a snapshot may copy: a fifth of all stacks.
BUDGET = 14_000_000
#: Memory limit in kB: one part of the copy (16 MiB) and the records of 5,000 threads. All stacks together are
#: 70 MB.
MOST_KB = 40_000
ROUNDS = 12


@pytest.fixture
def crowd(tmp_path: Path) -> Iterator[ManyThreads]:
    with ManyThreads(tmp_path, THREADS) as crowd:
        yield crowd


@pytest.fixture
def restless(tmp_path: Path) -> Iterator[ManyThreads]:
    with ManyThreads(tmp_path, THREADS, period_ms=300) as crowd:
        yield crowd


def _complete(snapshot: RawSnapshot) -> set[int]:
    """Return the ids of the threads whose stack is complete."""
    return {thread.tid for thread in snapshot.threads if thread.trust in ("exact", "inferred", "on_cpu")}


def _anonymous_kb() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1])
    raise AssertionError("no RssAnon")


@pytest.mark.parametrize("method", snapshot_methods.STOPPING_NOTHING)
def test_unlimited_snapshot_is_complete_and_memory_stays_flat(crowd: ManyThreads, method: str) -> None:
    before = _anonymous_kb()
    process = Process(crowd.pid, method=method)
    first = process.take_snapshot()
    assert len(first.threads) == THREADS + 1
    assert (_complete(first), first.shallow, first.notes) == ({thread.tid for thread in first.threads}, 0, [])
    assert _anonymous_kb() - before < MOST_KB

    # This snapshot enlarges the kernel's map to hold this many threads, and copies all stacks again.
    process.take_snapshot()
    later = process.take_snapshot()
    assert (first.unchanged, later.unchanged >= THREADS) == (0, True)
    assert len(later.threads) == THREADS + 1


@pytest.mark.parametrize("method", snapshot_methods.STOPPING_NOTHING)
def test_stacks_beyond_the_budget_are_cut_and_copied_whole_in_turn(crowd: ManyThreads, method: str) -> None:
    process = Process(crowd.pid, method=method, most_bytes=BUDGET)
    snapshot = process.take_snapshot()
    trust = Counter(thread.trust for thread in snapshot.threads)
    assert len(snapshot.threads) == THREADS + 1
    assert trust["truncated"] == snapshot.shallow > THREADS // 2
    assert [note for note in snapshot.notes if "truncated" in note and "at most 14 MB" in note]
    cut = {thread.stack for thread in snapshot.threads if thread.trust == "truncated"}
    assert all("asleep_in_crowd" in {frame.function for frame in snapshot.stacks[stack]} for stack in cut)

    for _ in range(ROUNDS):
        snapshot = process.take_snapshot()
    assert (len(_complete(snapshot)), snapshot.shallow, snapshot.notes) == (THREADS + 1, 0, [])


@pytest.mark.parametrize("method", snapshot_methods.STOPPING_NOTHING)
def test_threads_that_always_run_are_copied_in_turn(restless: ManyThreads, method: str) -> None:
    process = Process(restless.pid, method=method, most_bytes=BUDGET)
    whole: set[int] = set()
    threads: set[int] = set()
    for _ in range(2 * ROUNDS):
        snapshot = process.take_snapshot()
        threads = {thread.tid for thread in snapshot.threads}
        whole |= _complete(snapshot)
    assert len(threads) == THREADS + 1
    assert threads == whole


@pytest.mark.parametrize("method", snapshot_methods.STOPPING_NOTHING)
def test_deep_stacks_share_the_budget(tmp_path: Path, method: str) -> None:
    """Use stacks of 40 KB, which are read one by one: each snapshot reads only some of them."""
    with ManyThreads(tmp_path, 300, stack_bytes=40_000) as deep:
        process = Process(deep.pid, method=method, most_bytes=4_000_000)
        snapshot = process.take_snapshot()
        assert snapshot.shallow > 100
        assert {thread.trust for thread in snapshot.threads} <= {"exact", "inferred", "truncated"}
        for _ in range(ROUNDS):
            snapshot = process.take_snapshot()
        assert (len(_complete(snapshot)), snapshot.shallow) == (301, 0)
