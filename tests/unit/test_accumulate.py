"""Counters are not reset when a server restarts, and never decrease."""

from __future__ import annotations

import pytest

from innoscope.common.samples import Histogram, Sample, Value
from innoscope.daemon.sensor.accumulate import Accumulator, added

LASTING = ("redo_written_bytes",)
COUNTERS = ("statements", "fsync_seconds", *LASTING)


@pytest.fixture
def sums() -> Accumulator:
    return Accumulator(COUNTERS, LASTING)


def update(
    sums: Accumulator, epoch: int, raw: Value, metric: str = "statements", server: str = "3306"
) -> Value:
    (sample,) = sums.update(server, epoch, [Sample(metric, raw)])
    return sample.value


@pytest.mark.parametrize(
    ("metric", "readings", "expected"),
    [
        ("statements", [(1, 5), (1, 7), (1, 7)], [5, 7, 7]),
        ("statements", [(1, 100), (2, 3), (2, 4), (3, 0), (3, 1)], [100, 103, 104, 104, 105]),
        ("statements", [(1, 10), (2, 50)], [10, 60]),
        ("statements", [(1, 100), (1, 40), (1, 41), (1, 30)], [100, 100, 101, 101]),
        ("redo_written_bytes", [(1, 1000), (2, 1010)], [1000, 1010]),
        ("redo_written_bytes", [(1, 1010), (2, 5), (2, 6)], [1010, 1010, 1011]),
        ("redo_written_bytes", [(1, 1000), (2, 8), (2, 990), (2, 1001)], [1000, 1000, 1000, 1001]),
        ("connections", [(1, 9), (2, 2)], [9, 2]),
    ],
    ids=[
        "one process",
        "restarts",
        "restart that overtook the old value",
        "decrease within one process",
        "persistent counter",
        "persistent counter with a new data directory",
        "persistent counter during crash recovery",
        "gauge",
    ],
)
def test_counter_continues_over_restarts(
    sums: Accumulator, metric: str, readings: list[tuple[int, int]], expected: list[int]
) -> None:
    assert [update(sums, epoch, raw, metric) for epoch, raw in readings] == expected


def test_series_and_servers_are_counted_separately(sums: Accumulator) -> None:
    sums.update("a", 1, [Sample("statements", 1, ("x",)), Sample("statements", 2, ("y",))])
    update(sums, 1, 50, server="b")

    totals = sums.update("a", 2, [Sample("statements", 10, ("y",)), Sample("statements", 10, ("z",))])
    assert [sample.value for sample in totals] == [12, 10]
    assert update(sums, 1, 51, server="b") == 51


def test_added_returns_the_share_of_earlier_processes(sums: Accumulator) -> None:
    sums.update("a", 1, [Sample("statements", 5), Sample("fsync_seconds", Histogram((1,), 1))])
    raw = [Sample("statements", 2), Sample("fsync_seconds", Histogram((1,), 1)), Sample("connections", 3)]
    totals = sums.update("a", 2, raw)

    assert added(raw, totals) == (Sample("statements", 5),)
    assert added(raw, raw) == ()


def test_series_missing_in_one_process_keeps_its_sum(sums: Accumulator) -> None:
    update(sums, 1, 7)
    sums.update("3306", 2, [])

    assert update(sums, 3, 1) == 8


def test_histogram_continues_bucket_by_bucket(sums: Accumulator) -> None:
    first, second = Histogram((0, 3, 1), 40), Histogram((2,), 2)
    update(sums, 1, first, "fsync_seconds")

    assert update(sums, 2, second, "fsync_seconds") == Histogram((2, 3, 1), 42)
    decreased = update(sums, 2, Histogram((1,), 1), "fsync_seconds")
    assert isinstance(decreased, Histogram)
    assert decreased.count >= 6


def test_number_that_becomes_a_histogram_starts_again(sums: Accumulator) -> None:
    update(sums, 1, 7, "fsync_seconds")

    assert update(sums, 2, Histogram((1,), 1), "fsync_seconds") == Histogram((1,), 1)
    assert update(sums, 3, 4, "fsync_seconds") == 4
