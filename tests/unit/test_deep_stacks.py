"""Distinct stacks of runaway recursion take bounded memory in the sensor's histories."""

from __future__ import annotations

import itertools
import tracemalloc
from functools import partial
from typing import TYPE_CHECKING, Final

import pytest

from innoscope.sampling.model import Frame, Thread, Trust
from innoscope.sampling.profile_history import ClassifiedStack, ProfileHistory
from innoscope.sampling.sessions.buffer import SampleBuffer
from innoscope.sampling.snapshot_history import SnapshotHistory, SnapshotSummary

if TYPE_CHECKING:
    from collections.abc import Callable

START: Final = 1_700_000_000
CALL: Final = Frame("recursive", "mysqld", 7)
_PER_SNAPSHOT: Final = 100
_SNAPSHOTS: Final = 30


def deep(snapshot: int) -> list[ClassifiedStack]:
    """Return distinct stacks, each with 1,000 recursive calls and a different innermost function."""
    return [
        ClassifiedStack.of(
            "row_lock", Trust.EXACT, (Frame(f"leaf_{snapshot}_{number}", "mysqld", 1), *[CALL] * 1_000)
        )
        for number in range(_PER_SNAPSHOT)
    ]


def megabytes(add: Callable[[int, list[ClassifiedStack]], object]) -> float:
    """Return the memory, in MB, that ``add`` needs to store the stacks of all snapshots."""
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for snapshot in range(_SNAPSHOTS):
            add(START + snapshot, deep(snapshot))
        return (tracemalloc.get_traced_memory()[0] - before) / 1e6
    finally:
        tracemalloc.stop()


def _add_snapshot(snapshots: SnapshotHistory, at: int, stacks: list[ClassifiedStack]) -> None:
    summary = SnapshotSummary(at, {("connection", "row_lock"): len(stacks)})
    snapshots.add(summary, {("connection", one.wait, one.labels): [1] for one in stacks})


def _add_samples(samples: SampleBuffer, at: int, stacks: list[ClassifiedStack]) -> None:
    threads = (
        Thread(tid, tid, "connection", "S", Trust.EXACT, "row_lock", stack.frames)
        for tid, stack in enumerate(stacks, 1)
    )
    samples.add(at, 1.0, [("connection", stack, one) for stack, one in zip(stacks, threads, strict=True)])


def test_profiles_count_them_as_rare_stacks() -> None:
    profiles = ProfileHistory()
    assert megabytes(lambda at, stacks: profiles.add(at, dict.fromkeys(stacks, 1))) < 10
    whole = profiles.between(START, START + _SNAPSHOTS)
    assert sum(whole.counts.values()) == _SNAPSHOTS * _PER_SNAPSHOT
    assert whole.dropped > _SNAPSHOTS * _PER_SNAPSHOT // 2


@pytest.mark.parametrize(("name", "stacks"), [("recursive", 30), (None, 5)])
def test_profiles_of_calls_from_different_places_are_limited(name: str | None, stacks: int) -> None:
    """Let each call in each stack have its own place, in one function or in functions without a name."""
    profiles, place = ProfileHistory(), itertools.count()

    def add(at: int, _: list[ClassifiedStack]) -> None:
        for number in range(stacks):
            calls = [Frame(name, "mysqld", next(place)) for _ in range(1_000)]
            frames = (Frame(f"leaf_{at}_{number}", "mysqld", 1), *calls)
            profiles.add(at, {ClassifiedStack.of("row_lock", Trust.EXACT, frames): 1})

    assert megabytes(add) < 15
    assert profiles.between(START, START + _SNAPSHOTS).dropped > 0


def test_profiles_with_long_names_are_limited_by_their_size() -> None:
    """Give each frame its own copy of its name, as in the agent, which decodes each reply separately."""
    profiles = ProfileHistory()

    def add(at: int, _: list[ClassifiedStack]) -> None:
        frames = tuple(Frame(f"{at} {depth} ".ljust(512, "f"), "mysqld", depth) for depth in range(2_000))
        profiles.add(at, {ClassifiedStack.of("row_lock", Trust.EXACT, frames): 1})

    assert megabytes(add) < 15
    assert profiles.between(START, START + _SNAPSHOTS).dropped > 0


def test_snapshots_count_their_wait_classes() -> None:
    snapshots = SnapshotHistory(60)
    assert megabytes(partial(_add_snapshot, snapshots)) < 6
    found, seen = snapshots.between(START, START + _SNAPSHOTS)
    assert len(found) == _SNAPSHOTS
    assert 0 < len(seen) < _SNAPSHOTS * _PER_SNAPSHOT // 2


def test_samples_are_dropped_oldest_first() -> None:
    samples = SampleBuffer()
    assert megabytes(partial(_add_samples, samples)) < 20
    cursor, found = samples.since(0, 1)
    assert found.snapshots[0].at > START * 1_000_000
    assert samples.since(cursor)[1].snapshots


def test_histories_of_many_servers_share_the_memory() -> None:
    profiles, snapshots, samples = ProfileHistory(), SnapshotHistory(60), SampleBuffer()
    histories: tuple[ProfileHistory | SnapshotHistory | SampleBuffer, ...] = (profiles, snapshots, samples)
    for history in histories:
        history.share(64)
    assert megabytes(lambda at, stacks: profiles.add(at, dict.fromkeys(stacks, 1))) < 1.25
    assert megabytes(partial(_add_snapshot, snapshots)) < 1
    assert megabytes(partial(_add_samples, samples)) < 2


def test_stored_stacks_make_room_for_another_server() -> None:
    profiles, samples = ProfileHistory(), SampleBuffer()
    for at in range(START, START + _SNAPSHOTS):
        profiles.add(at, dict.fromkeys(deep(at), 1))
        _add_samples(samples, at, deep(at))
    for history in (profiles, samples):
        history.share(64)
    kept = profiles.between(START, START + _SNAPSHOTS)
    assert sum(kept.counts.values()) == _SNAPSHOTS * _PER_SNAPSHOT
    assert sum(len(stack.frames) for stack in kept.counts) < 1_250_000 / 16
    _, batch = samples.since(0)
    assert batch.snapshots
    assert sum(len(shape.stack) for shape in batch.shapes) <= 8_000_000 / 64
