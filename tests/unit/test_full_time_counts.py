"""Counts of duty-cycled probes are extrapolated evenly over each pause, by a factor for each probe."""

from __future__ import annotations

import struct
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from innoscope.probes.attachment import HISTOGRAM_WORDS, MapContents
from innoscope.probes.full_time_counts import Share, Totals
from innoscope.probes.slots import default_slots
from innoscope.probes.state import State

_SLOTS = default_slots()
_COUNTER = _SLOTS.counters["purge_batches"]
#: Keys in the map of files: descriptor 7 with operation 0 (fsync) or 2 (fdatasync).
_FSYNC, _FDATASYNC = struct.pack("=II", 7, 0), struct.pack("=II", 7, 2)


def _contents(hits: int = 0, **files: int) -> MapContents:
    counters = [0] * _SLOTS.counter_count
    counters[_COUNTER.first] = hits
    keys = {"fsync": _FSYNC, "fdatasync": _FDATASYNC}
    words = {keys[name]: [0, count, *[0] * (HISTOGRAM_WORDS - 2)] for name, count in files.items()}
    histograms = [[0] * HISTOGRAM_WORDS for _ in range(_SLOTS.histogram_count)]
    return MapContents(0.0, counters, histograms, [], words, {})


def _total(totals: Totals) -> float:
    return totals.counters[_COUNTER.first]


def test_counts_are_exact_without_a_duty_cycle() -> None:
    totals = Totals()
    for hits in (3, 3, 10):
        totals.add(_contents(hits), {}, {})
        assert _total(totals) == hits


def test_counts_of_a_window_are_added_while_the_pause_passes() -> None:
    totals, metric = Totals(), _COUNTER.metric
    seen = []
    for due in (0.0, 0.25, 1 / 3, 1.0):  # in the window, then after 1/4, 1/2 and all of the pause
        totals.add(_contents(10), {metric: Share(5, due)}, {})
        seen.append(_total(totals))
    assert seen == pytest.approx([10, 20, 30, 50])


def test_nothing_is_extrapolated_once_the_probe_is_always_attached() -> None:
    totals, metric = Totals(), _COUNTER.metric
    totals.add(_contents(10), {metric: Share(5, 0.5)}, {})
    totals.add(_contents(12), {}, {})
    assert _total(totals) == pytest.approx(10 + 20 + 2)


def test_operations_on_files_have_their_own_factors() -> None:
    totals = Totals()
    totals.add(_contents(fsync=10, fdatasync=10), {}, {2: Share(100, 1.0)})
    assert {key: words[1] for key, words in totals.files.items()} == {_FSYNC: 10, _FDATASYNC: 1000}


def test_pause_is_due_in_proportion_to_the_time_that_has_passed() -> None:
    state = State(_point(), 1e-6)
    assert state.share(100.0) is None
    state.scale, state.switch_at = 5.0, 100.0
    assert state.share(100.0) == Share(5.0, 0.0)
    state.paused_at, state.switch_at = 100.0, 104.0
    shares = [state.share(now) for now in (101.0, 103.0, 105.0, 106.0)]
    assert [share and share.due for share in shares] == pytest.approx([1 / 4, 2 / 3, 1, 1])


def _point() -> Any:
    return SimpleNamespace(name="purge")


@pytest.mark.parametrize("share", [None, Share(4.0, 0.0)])
def test_counts_of_a_deleted_file_are_added_to_the_overflow_entry(share: Share | None) -> None:
    totals = Totals()
    shares = {0: share} if share else {}
    totals.add(_contents(fsync=5, fdatasync=3), {}, shares)
    totals.add(replace(_contents(fsync=6, fdatasync=3), deleted=frozenset({_FSYNC})), {}, shares)
    other = struct.pack("=II", 0xFFFFFFFF, 0)
    assert {key: words[1] for key, words in totals.files.items()} == {
        _FDATASYNC: 3, other: 24 if share else 6
    }  # fmt: skip

    totals.add(_contents(fsync=2), {}, {})  # the descriptor is reused, so its entry starts at 0
    assert totals.files[_FSYNC][1] == 2
    assert totals.files[other][1] == (24 if share else 6)
