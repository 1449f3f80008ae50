"""Counters go on over restarts, and never go backwards."""

from __future__ import annotations

from innoscope.common.samples import Histogram, Sample, Value
from innoscope.daemon.sensor.accumulate import Accumulator, added

LASTING = ("redo_written_bytes",)
COUNTERS = ("statements", "fsync_seconds", *LASTING)


def sums() -> Accumulator:
    return Accumulator(COUNTERS, LASTING)


def value(
    known: Accumulator, epoch: int, raw: Value, metric: str = "statements", thing: str = "3306"
) -> Value:
    (sample,) = known.update(thing, epoch, [Sample(metric, raw)])
    return sample.value


def test_the_first_life_is_told_as_it_is() -> None:
    known = sums()

    assert [value(known, 1, raw) for raw in (5, 7, 7)] == [5, 7, 7]


def test_a_new_life_goes_on_from_the_last() -> None:
    known = sums()
    value(known, 1, 100)

    assert [value(known, 2, raw) for raw in (3, 4)] == [103, 104]
    assert [value(known, 3, raw) for raw in (0, 1)] == [104, 105]


def test_a_new_life_that_has_overtaken_the_old_is_told_apart_by_its_epoch() -> None:
    known = sums()
    value(known, 1, 10)

    assert value(known, 2, 50) == 60


def test_a_counter_that_falls_within_a_life_stands_still() -> None:
    known = sums()
    value(known, 1, 100)

    assert [value(known, 1, raw) for raw in (40, 41, 30)] == [100, 101, 101]


def test_gauges_are_left_alone() -> None:
    known = sums()
    value(known, 1, 9, "connections")

    assert value(known, 2, 2, "connections") == 2


def test_what_lasts_by_itself_is_not_added_up() -> None:
    known = sums()
    value(known, 1, 1_000, "redo_written_bytes")

    assert value(known, 2, 1_010, "redo_written_bytes") == 1_010
    assert value(known, 3, 5, "redo_written_bytes") == 1_010, "a new data folder"
    assert value(known, 3, 6, "redo_written_bytes") == 1_011


def test_recovery_begins_near_zero_and_ends_where_the_crash_was() -> None:
    known = sums()
    value(known, 1, 1_000, "redo_written_bytes")

    assert value(known, 2, 8, "redo_written_bytes") == 1_000
    assert value(known, 2, 990, "redo_written_bytes") == 1_000, "the crash lost the end"
    assert value(known, 2, 1_001, "redo_written_bytes") == 1_001


def test_series_and_things_are_apart() -> None:
    known = sums()
    known.update("a", 1, [Sample("statements", 1, ("x",)), Sample("statements", 2, ("y",))])
    value(known, 1, 50, thing="b")

    told = known.update("a", 2, [Sample("statements", 10, ("y",)), Sample("statements", 10, ("z",))])
    assert [sample.value for sample in told] == [12, 10]
    assert value(known, 1, 51, thing="b") == 51


def test_what_was_added_is_told() -> None:
    known = sums()
    known.update("a", 1, [Sample("statements", 5), Sample("fsync_seconds", Histogram((1,), 1))])
    raw = [Sample("statements", 2), Sample("fsync_seconds", Histogram((1,), 1)), Sample("connections", 3)]
    told = known.update("a", 2, raw)

    assert added(raw, told) == (Sample("statements", 5),)
    assert added(raw, raw) == ()


def test_a_series_that_pauses_for_a_life_keeps_its_sum() -> None:
    known = sums()
    value(known, 1, 7)
    known.update("3306", 2, [])

    assert value(known, 3, 1) == 8


def test_histograms_go_on_too() -> None:
    known = sums()
    first, second = Histogram((0, 3, 1), 40), Histogram((2,), 2)
    value(known, 1, first, "fsync_seconds")

    assert value(known, 2, second, "fsync_seconds") == Histogram((2, 3, 1), 42)
    fallen = value(known, 2, Histogram((1,), 1), "fsync_seconds")
    assert isinstance(fallen, Histogram)
    assert fallen.count >= 6


def test_a_number_that_becomes_a_histogram_begins_anew() -> None:
    known = sums()
    value(known, 1, 7, "fsync_seconds")

    assert value(known, 2, Histogram((1,), 1), "fsync_seconds") == Histogram((1,), 1)
    assert value(known, 3, 4, "fsync_seconds") == 4


def test_forgotten_is_forgotten() -> None:
    known = sums()
    value(known, 1, 7)
    known.forget("3306")
    known.forget("never seen")

    assert value(known, 2, 1) == 1
