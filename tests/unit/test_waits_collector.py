"""Test the schedule and the sums of the waits collector with synthetic snapshots."""

from __future__ import annotations

import contextlib
import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from innoscope.common.errors import KernelUnable
from innoscope.common.samples import by_series
from innoscope.common.workers import Job
from innoscope.metrics.collectors.errors import CollectorFailed
from innoscope.metrics.collectors.waits import WaitsCollector
from innoscope.sampling.classify import default_classifier
from innoscope.sampling.model import Trust
from innoscope.sampling.profile_history import ProfileHistory
from innoscope.target.model import Query
from unit.snapshots import IDLE, ROW_LOCK, frames, snapshot_of, target, thread
from waiting import until

if TYPE_CHECKING:
    from innoscope.common.workers import Workers
    from innoscope.sampling.model import Snapshot
    from innoscope.target.model import Target

PATIENCE_S = 60
INTERVAL_S = 0.01


class FakeSource:
    """A source of the given snapshots, which repeats the last one.

    If ``stepped`` is true, each snapshot waits until the test releases ``step``.
    """

    def __init__(self, *snapshots: Snapshot | Exception, stepped: bool = False) -> None:
        self._left = list(snapshots)
        self.snapshots = self.closed = 0
        self.step = threading.Semaphore(0 if stepped else 1_000_000)
        self.taken = threading.Semaphore(0)

    def __call__(self, _: Target) -> FakeSource:
        return self

    def close(self) -> None:
        self.closed += 1

    def take_snapshot(self) -> Snapshot:
        self.step.acquire()
        self.snapshots += 1
        self.taken.release()
        item = self._left.pop(0) if len(self._left) > 1 else self._left[0]
        if isinstance(item, Exception):
            raise item
        return item


class Clock:
    """A clock that the test sets."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


class Stepped:
    """A collector that takes a snapshot each time the test requests one."""

    def __init__(self, workers: Workers, *snapshots: Snapshot) -> None:
        self.clock, self.profiles = Clock(), ProfileHistory()
        self.source = FakeSource(*snapshots, stepped=True)
        self.waits = WaitsCollector(
            target(),
            self.profiles,
            workers=workers,
            open_source=self.source,
            clock=self.clock,
            interval_s=INTERVAL_S,
        )

    def __enter__(self) -> Stepped:
        return self

    def __exit__(self, *_: object) -> None:
        self.source.step.release(100)
        self.waits.close()

    def snapshot(self, after_s: float = 0.0) -> None:
        """Take a snapshot, and wait until it is counted."""
        before = self.profiles.between(0, 1e12).snapshots
        self.clock.now += after_s
        self.source.step.release()
        until(lambda: self.profiles.between(0, 1e12).snapshots == before + 1, within_s=PATIENCE_S)

    def cached_frames(self) -> list[int]:
        """Return the number of frames of each stack in the cache, without those that share their labels."""
        cached = {id(seen.stack.labels): len(seen.stack.labels) for seen in self.waits._seen.values()}
        return list(cached.values())


def test_the_cached_stacks_are_limited_in_frames(workers: Workers) -> None:
    """Let two threads have new stacks with 1,000 frames in each snapshot."""
    deep = [
        snapshot_of(*(thread(tid, frames(*[f"f{number}.{tid}"] * 1_000)) for tid in (1, 2)))
        for number in range(40)
    ]
    with Stepped(workers, *deep) as stepped:
        for _ in deep:
            stepped.snapshot()
            assert sum(stepped.cached_frames()) <= 2 * 2_000 + 10_000
        assert sum(stepped.cached_frames()) >= 2_000


def test_threads_with_different_names_share_the_labels_of_their_stack(workers: Workers) -> None:
    stack = frames(*["f"] * 1_000)
    threads = [replace(thread(tid, stack), comm=f"name {tid}") for tid in range(1, 20)]
    with Stepped(workers, snapshot_of(*threads)) as stepped:
        stepped.snapshot()
        assert stepped.cached_frames() == [1_000]


def test_snapshots_give_counts_sums_trust_and_profiles(workers: Workers) -> None:
    snapshot = snapshot_of(thread(1), thread(2), thread(3, ROW_LOCK, "row_lock", Trust.TORN))
    with Stepped(workers, snapshot) as stepped:
        with pytest.raises(CollectorFailed, match="first snapshot"):
            stepped.waits.collect()
        for seconds in (0.0, INTERVAL_S, INTERVAL_S):
            stepped.snapshot(seconds)
        seen = by_series(stepped.waits.collect())
        counts = stepped.profiles.between(0, 1e12).counts

    assert seen["threads", ("idle", "client")] == 2
    assert seen["threads", ("row_lock", "client")] == 1
    assert seen["thread_seconds", ("idle",)] == pytest.approx(4 * INTERVAL_S)
    assert seen["thread_seconds", ("row_lock",)] == pytest.approx(2 * INTERVAL_S)
    assert seen["thread_samples", ("exact",)] == 6
    assert seen["thread_samples", ("torn",)] == 3
    classes = default_classifier().catalog.classes
    assert {labels[0] for name, labels in seen if name == "threads"} == set(classes)
    assert {labels[0] for name, labels in seen if name == "thread_samples"} == set(Trust)
    assert {stack.wait: count for stack, count in counts.items()} == {"idle": 6, "row_lock": 3}


class FakeStatements(FakeSource):
    """A source whose snapshots have statements."""

    available = True


def test_statements_are_counted_by_trust(workers: Workers) -> None:
    query = Query(7, "app", None, "shop", "Query", None, None, "SELECT ?", trust="exact", digest_id="43d8")
    snapshot = snapshot_of(
        thread(1), replace(thread(2, ROW_LOCK, "row_lock"), query=query), thread(3, ROW_LOCK, "row_lock")
    )
    source = FakeStatements(snapshot, stepped=True)
    profiles = ProfileHistory()
    waits = WaitsCollector(target(), profiles, workers=workers, open_source=source, interval_s=INTERVAL_S)
    with contextlib.closing(waits):
        source.step.release()
        until(lambda: profiles.between(0, 1e12).snapshots, within_s=PATIENCE_S)
        seen = by_series(waits.collect())
        source.available = False
        without = by_series(waits.collect())
        source.step.release(100)

    trusts = {trust: seen["statement_threads", (trust,)] for trust in ("exact", "running", "none")}
    assert trusts == {"exact": 1, "running": 0, "none": 1}
    assert seen["statements_up", ()] == 1
    assert without["statements_up", ()] == 0
    assert ("statement_threads", ("none",)) not in without


def test_a_gap_counts_for_at_most_five_intervals(workers: Workers) -> None:
    with Stepped(workers, snapshot_of(thread(1))) as stepped:
        stepped.snapshot()
        stepped.snapshot(after_s=600)
        seen = by_series(stepped.waits.collect())

    assert seen["thread_seconds", ("idle",)] == pytest.approx(5 * INTERVAL_S)


def test_missed_snapshots_are_skipped(workers: Workers) -> None:
    source = FakeSource(snapshot_of(thread(1)))
    began = time.monotonic()
    waits = WaitsCollector(target(), workers=workers, open_source=source, interval_s=0.05)
    for _ in range(10):
        assert source.taken.acquire(timeout=PATIENCE_S)
    waits.close()
    took = time.monotonic() - began

    assert took >= 8 * 0.05, "ten snapshots are nine intervals, and the first may be late"


def test_slow_snapshots_are_less_frequent(workers: Workers) -> None:
    """Let each snapshot after the first take 0.1 s, which is ten intervals."""
    clock, starts, pauses = Clock(), list[float](), list[float]()

    class Slow(FakeSource):
        def take_snapshot(self) -> Snapshot:
            starts.append(time.monotonic())
            clock.now += 0.1 if self.snapshots else 0.0
            return super().take_snapshot()

    class Recording(WaitsCollector):
        def _try_snapshot(self) -> float:
            pauses.append(super()._try_snapshot())
            return pauses[-1]

    source = Slow(snapshot_of(thread(1)))
    began = time.monotonic()
    waits = Recording(
        target(), workers=workers, open_source=source, clock=clock, interval_s=INTERVAL_S
    )  # fmt: skip
    with contextlib.closing(waits):
        until(lambda: len(starts) >= 4, within_s=PATIENCE_S)
    assert pauses[0] == INTERVAL_S, "the first snapshot reads the symbols, and does not count"
    assert starts[3] - began > 0.7, "two pauses of 0.4 s"


def test_a_snapshot_is_not_too_old_during_a_long_pause(workers: Workers) -> None:
    with Stepped(workers, snapshot_of(thread(1))) as stepped:
        stepped.snapshot()
        stepped.waits._pause_s = 10.0
        stepped.clock.now += 30
        assert by_series(stepped.waits.collect())["threads", ("idle", "client")] == 1


def test_an_old_snapshot_is_a_timeout(workers: Workers) -> None:
    with Stepped(workers, snapshot_of(thread(1))) as stepped:
        stepped.snapshot()
        stepped.clock.now += 7
        with pytest.raises(CollectorFailed, match="the last snapshot ended 7 s ago") as caught:
            stepped.waits.collect()

    assert caught.value.reason == "timeout"


@pytest.mark.parametrize("first", [snapshot_of(thread(1)), OSError("no memory")], ids=["taken", "failed"])
def test_calls_run_once_after_the_first_snapshot(workers: Workers, first: Snapshot | Exception) -> None:
    calls: list[str] = []
    source = FakeSource(first, snapshot_of(thread(1)), stepped=True)
    waits = WaitsCollector(target(), workers=workers, open_source=source, interval_s=INTERVAL_S)
    waits.after_first(lambda: calls.append("early"))
    assert calls == []
    source.step.release()
    until(lambda: calls, within_s=PATIENCE_S)
    waits.after_first(lambda: calls.append("late"))
    source.step.release(100)
    waits.close()

    assert calls == ["early", "late"]
    assert bool(waits.thread_kinds()) or isinstance(first, Exception)


def test_a_kernel_without_bpf_is_unsupported_with_its_reason(workers: Workers) -> None:
    error = KernelUnable(
        "this kernel cannot run the stack snapshot: no BTF", remedy="innoscope doctor says why"
    )

    def no_source(_: Target) -> FakeSource:
        raise error

    waits = WaitsCollector(target(), workers=workers, open_source=no_source)
    try:
        until(lambda: "no BTF" in str(_raised(waits)), within_s=PATIENCE_S)
        failure = _raised(waits)
    finally:
        waits.close()

    assert isinstance(failure, CollectorFailed)
    assert (failure.reason, failure.words) == ("unsupported", f"{error.what} ({error.remedy})")


def _raised(waits: WaitsCollector) -> Exception | None:
    try:
        waits.collect()
    except Exception as error:
        return error
    return None


def test_an_idle_pool_thread_keeps_its_last_kind(workers: Workers) -> None:
    purge = frames("row_purge", "purge_worker_callback", "tpool::task_group::execute")
    idle = frames("libc.so.6!pthread_cond_wait", "tpool::thread_pool_generic::get_task")
    snapshots = [
        snapshot_of(thread(1, purge), thread(2, IDLE), thread(3, idle)),
        snapshot_of(thread(1, idle), thread(2, idle, trust=Trust.TORN), thread(3, idle)),
        snapshot_of(thread(1, IDLE)),
    ]
    seen = []
    with Stepped(workers, *snapshots) as stepped:
        assert stepped.waits.thread_kinds() == {}
        for _ in snapshots:
            stepped.snapshot()
            seen.append(dict(stepped.waits.thread_kinds()))

    assert seen == [
        {1: "purge", 2: "connection", 3: "background"},
        {1: "purge", 2: "connection", 3: "background"},
        {1: "connection"},
    ]


def test_a_closed_collector_takes_no_snapshots(workers: Workers) -> None:
    source = FakeSource(snapshot_of(thread(1)))
    waits = WaitsCollector(target(), workers=workers, open_source=source, interval_s=0.001)
    assert source.taken.acquire(timeout=PATIENCE_S)
    waits.close()
    snapshots, later = source.snapshots, threading.Event()
    workers.submit_at(time.monotonic() + 0.05, Job("waits", "a later job", later.set))

    assert later.wait(PATIENCE_S)
    assert (source.snapshots, source.closed) == (snapshots, 1)
