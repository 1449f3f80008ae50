"""On slow hosts, a snapshot is recorded even if it takes longer than the interval or the observation."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from innoscope.diagnose import snapshot_loop
from innoscope.diagnose.snapshot_loop import SnapshotLoop
from innoscope.memory.locks import layout
from innoscope.memory.locks.owners import LockOwners
from unit.snapshots import snapshot_of, target, thread
from waiting import until

if TYPE_CHECKING:
    import pytest

    from innoscope.sampling.model import Snapshot
    from innoscope.target.model import Target


class Source:
    """A source whose first snapshot takes ``first_s`` seconds."""

    def __init__(self, first_s: float = 0.0) -> None:
        self.taken = 0
        self._first_s = first_s

    def take_snapshot(self) -> Snapshot:
        if not self.taken:
            time.sleep(self._first_s)
        self.taken += 1
        return snapshot_of(thread(1))


def test_a_source_that_opens_after_the_observation_takes_one_snapshot() -> None:
    source, may_open, opening = Source(), threading.Event(), threading.Event()

    def opened(_: Target) -> Source:
        opening.set()
        may_open.wait()
        return source

    loop = SnapshotLoop(target(), opened)
    opening.wait()
    closing = threading.Thread(target=loop.close)
    closing.start()
    until(lambda: loop._ended.is_set())
    may_open.set()
    closing.join()

    assert source.taken == 1
    assert len(loop.history.since(0)) == 1


def test_a_slow_first_snapshot_does_not_delay_the_next_ones() -> None:
    """Fail if the loop pauses for 20 times as long as the first snapshot took, which would be 20 s."""
    source = Source(first_s=1.0)
    loop = SnapshotLoop(target(), lambda _: source, interval_s=0.01)
    began = time.monotonic()
    try:
        until(lambda: source.taken >= 3, within_s=60)
        assert time.monotonic() - began < 15
    finally:
        loop.close()


def test_waiting_for_the_first_snapshot_ends_when_the_kinds_of_threads_are_known() -> None:
    may_open = threading.Event()

    def opened(_: Target) -> Source:
        may_open.wait()
        return Source()

    loop = SnapshotLoop(target(), opened)
    found: list[int] = []

    def wait() -> None:
        loop.wait_for_first()
        found.append(len(loop.kinds()))

    waiting = threading.Thread(target=wait)
    waiting.start()
    assert not found
    may_open.set()
    waiting.join()
    loop.close()
    assert found == [1]


def test_waiting_for_the_first_snapshot_ends_if_no_snapshot_can_be_taken() -> None:
    def opened(_: Target) -> Source:
        raise OSError("not accessible")

    loop = SnapshotLoop(target(), opened)
    loop.wait_for_first()
    assert loop.failure is not None
    loop.close()


class Panic(BaseException):
    """A stand-in for the exception that a panic in the Rust core raises."""


def test_a_panic_is_reported_and_snapshots_continue(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(snapshot_loop, "_RETRY_S", 0.01)
    source, failing = Source(), [Panic("index out of bounds")]

    def opened(_: Target) -> Source:
        if failing:
            raise failing.pop()
        return source

    loop = SnapshotLoop(target(), opened, interval_s=0.01)
    try:
        until(lambda: source.taken)
    finally:
        loop.close()
    assert "cannot take snapshots: Panic: index out of bounds" in caplog.text


def test_a_panic_while_the_lock_layout_is_read_is_reported(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def panic(_: Target) -> None:
        raise Panic

    monkeypatch.setattr(layout, "learn", panic)
    LockOwners(target())._learner.join()
    assert "cannot read the layout of locks: unexpected Panic" in caplog.text
