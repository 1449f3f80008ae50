"""Counters go on: over another source, another sensor, another server."""

from __future__ import annotations

from innoscope.common.samples import Histogram
from innoscope.metrics.counters import Counters, Life

LIFE = Life("server 1", "sensor 1")
NEW_SENSOR = Life("server 1", "sensor 2")
NEW_SERVER = Life("server 2", "sensor 1")


def told(*steps: tuple[str, Life, float]) -> list[object]:
    counters = Counters()
    return [counters.settle("series", source, life, raw) for source, life, raw in steps]


def test_one_source_is_passed_on_as_it_is() -> None:
    assert told(("sql", LIFE, 5), ("sql", LIFE, 9)) == [5, 9]


def test_another_source_goes_on_where_the_last_one_was() -> None:
    steps = (
        ("sql", LIFE, 1000),
        ("probes", LIFE, 3),
        ("probes", LIFE, 8),
        ("sql", LIFE, 1020),
        ("sql", LIFE, 1021),
    )

    assert told(*steps) == [1000, 1000, 1005, 1005, 1006]


def test_probes_of_a_new_sensor_count_from_zero_even_if_they_are_ahead() -> None:
    assert told(("probes", LIFE, 10), ("probes", NEW_SENSOR, 30), ("probes", NEW_SENSOR, 31)) == [10, 40, 41]


def test_a_server_that_was_restarted_counts_on() -> None:
    assert told(("sql", LIFE, 10), ("sql", NEW_SERVER, 2), ("sql", NEW_SERVER, 3)) == [10, 12, 13]


def test_a_source_that_lost_its_memory_stands_still() -> None:
    assert told(("process", LIFE, 10), ("process", NEW_SENSOR, 4), ("process", NEW_SENSOR, 6)) == [10, 10, 12]


def test_a_new_sensor_does_not_matter_to_what_the_server_counts() -> None:
    assert told(("memory", LIFE, 10), ("memory", NEW_SENSOR, 12)) == [10, 12]


def test_histograms_go_on_too() -> None:
    counters = Counters()
    first, second = Histogram((0, 2, 1), 70), Histogram((1,), 1)

    assert counters.settle("h", "probes", LIFE, first) == first
    assert counters.settle("h", "probes", NEW_SENSOR, second) == Histogram((1, 2, 1), 71)
    assert counters.settle("h", "probes", NEW_SENSOR, Histogram((1, 1), 3)) == Histogram((1, 3, 1), 73)
