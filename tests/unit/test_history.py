"""The live page's one-hour history is ordered and bounded, and can be read from any point onwards."""

from __future__ import annotations

import json
import math
from collections import Counter

from innoscope.daemon.agent.history import METRICS, Ring, ServerHistories
from innoscope.metrics import registry
from innoscope.metrics.merge import ExportedSeries
from innoscope.sampling.model import Trust
from innoscope.sampling.profile_history import Chunk, ClassifiedStack

HOUR = 3600.0


def chunk(start: float, **threads: int) -> Chunk:
    counts = Counter(
        {ClassifiedStack(wait, Trust.EXACT, (wait,), ()): count for wait, count in threads.items()}
    )
    return Chunk(start, start + 9, 10, 5.0, counts)


def gauge(name: str, value: float, server: str = "a", labels: tuple[str, ...] = ()) -> ExportedSeries:
    return ExportedSeries(registry.default()[name], server, labels, value)


def test_rows_fill_missing_columns_and_expire() -> None:
    ring = Ring(20, missing=0.0)
    ring.add(100, {"a": 1})
    ring.add(110, {"b": 2.5})
    assert ring.since(0) == ([100, 110], {"a": [1, 0], "b": [0, 2.5]})
    assert ring.since(100) == ([110], {"b": [2.5]})
    ring.add(125, {"b": 1})
    assert ring.since(0)[0] == [110, 125]


def test_setting_the_clock_back_removes_future_rows() -> None:
    ring = Ring(HOUR, missing=math.nan)
    for at in (100, 110, 120):
        ring.add(at, {"a": at})
    ring.add(105, {"a": 1})
    ring.add(105, {"a": 2})
    assert ring.since(0) == ([100, 105], {"a": [100, 2]})


def test_threads_are_averages_of_ten_seconds() -> None:
    history = ServerHistories(HOUR, clock=lambda: 1000)
    history.add_profiles("a", [chunk(1000.4, idle=80, row_lock=25), chunk(1010.2, idle=80)])
    rows = history.rows_since("a")
    assert rows["waits"] == {"at": [1000, 1010], "threads": {"idle": [8, 8], "row_lock": [2.5, 0]}}
    assert history.rows_since("a", since=1000)["waits"] == {"at": [1010], "threads": {"idle": [8]}}
    assert history.rows_since("b") == {"waits": {"at": [], "threads": {}}, "gauges": {"at": [], "values": {}}}


def test_gauges_are_those_of_the_charts_by_server() -> None:
    history = ServerHistories(HOUR, clock=lambda: 1000)
    history.add_scrape(
        1000.5,
        [
            gauge(METRICS[0], 7),
            gauge("threads", 9, labels=("idle",)),
            gauge(METRICS[1], math.inf),
            gauge(METRICS[0], 8, "b"),
        ],
    )
    assert history.rows_since("a")["gauges"] == {"at": [1000.5], "values": {METRICS[0]: [7]}}
    assert history.rows_since("b")["gauges"]["values"] == {METRICS[0]: [8]}


def test_an_hour_takes_little_memory_and_ended_servers_none() -> None:
    now = [0.0]
    history = ServerHistories(HOUR, clock=lambda: now[0])
    for step in range(500):
        now[0] = step * 10.0
        waits = {f"class_{number}": 30 for number in range(12)}
        history.add_profiles("a", [chunk(now[0], **waits)])
        history.add_scrape(now[0], [gauge(name, 1.5) for name in METRICS])
    assert len(history.rows_since("a")["waits"]["at"]) == 361
    assert history.used_bytes() == 361 * (8 + 12 * 4 + 8 + len(METRICS) * 4)
    assert len(json.dumps(history.rows_since("a"))) < 40_000
    now[0] += 4000
    history.add_scrape(now[0], [])
    assert history.rows_since("a")["waits"]["at"] == []
