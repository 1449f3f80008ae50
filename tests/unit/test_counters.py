"""Counters are not reset if the source of their values changes, or if the sensor or the server restarts."""

from __future__ import annotations

import pytest

from innoscope.common.samples import Histogram
from innoscope.metrics.counters import Counters, Life

LIFE = Life("server 1", "sensor 1")
NEW_SENSOR = Life("server 1", "sensor 2")
NEW_SERVER = Life("server 2", "sensor 1")
SERIES = ("reads", ("data",))


@pytest.mark.parametrize(
    ("readings", "expected"),
    [
        ([("sql", LIFE, 5), ("sql", LIFE, 9)], [5, 9]),
        (
            [
                ("sql", LIFE, 1000),
                ("probes", LIFE, 3),
                ("probes", LIFE, 8),
                ("sql", LIFE, 1020),
                ("sql", LIFE, 1021),
            ],
            [1000, 1000, 1005, 1005, 1006],
        ),
        ([("probes", LIFE, 10), ("probes", NEW_SENSOR, 30), ("probes", NEW_SENSOR, 31)], [10, 40, 41]),
        ([("memory", LIFE, 10), ("memory", NEW_SENSOR, 12)], [10, 12]),
        ([("sql", LIFE, 10), ("sql", NEW_SERVER, 2), ("sql", NEW_SERVER, 3)], [10, 12, 13]),
        ([("process", LIFE, 10), ("process", NEW_SENSOR, 4), ("process", NEW_SENSOR, 6)], [10, 10, 12]),
    ],
    ids=[
        "one source",
        "another source",
        "probes restart from zero with a sensor",
        "memory does not restart with a sensor",
        "restarted server",
        "decrease",
    ],
)
def test_counter_continues_and_never_decreases(
    readings: list[tuple[str, Life, float]], expected: list[float]
) -> None:
    counters = Counters()

    assert [counters.settle(SERIES, source, life, raw) for source, life, raw in readings] == expected


def test_histogram_continues_bucket_by_bucket() -> None:
    counters = Counters()
    first, second = Histogram((0, 2, 1), 70), Histogram((1,), 1)

    assert counters.settle(SERIES, "probes", LIFE, first) == first
    assert counters.settle(SERIES, "probes", NEW_SENSOR, second) == Histogram((1, 2, 1), 71)
    assert counters.settle(SERIES, "probes", NEW_SENSOR, Histogram((1, 1), 3)) == Histogram((1, 3, 1), 73)
