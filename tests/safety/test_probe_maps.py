"""The BPF maps of the probes stay bounded under many thread ids, and overflows are counted."""

from __future__ import annotations

import resource
from typing import TYPE_CHECKING, Final

import pytest

from innoscope.common.samples import by_series
from innoscope.metrics.collectors.probes import ProbesCollector
from innoscope.target.discover import find_one
from scale import count
from servers import Server

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

IDS: Final = count(quick=200_000, full=1_000_000)
AT_ONCE: Final = 10_000
ROOM: Final = 16_384


class _Threads:
    """Synthetic thread ids of the server."""

    def __init__(self) -> None:
        self.ids = range(0)

    def kinds(self) -> Mapping[int, str]:
        return dict.fromkeys(self.ids, "master")


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server("mysql-5.6.24") as server:
        yield server


@pytest.fixture
def threads() -> _Threads:
    return _Threads()


@pytest.fixture
def collector(server: Server, threads: _Threads) -> Iterator[ProbesCollector]:
    collector = ProbesCollector(
        find_one(server.pid), families=frozenset({"redo", "spin"}), kinds=threads.kinds
    )
    collector.start()
    yield collector
    collector.close()


def _value(collector: ProbesCollector, metric: str) -> object:
    return by_series(collector.collect())[metric, ("thread_kinds",)]


def test_entries_of_ended_threads_are_deleted(collector: ProbesCollector, threads: _Threads) -> None:
    peaks = []
    for first in range(1, IDS, AT_ONCE):
        threads.ids = range(first, first + AT_ONCE)
        assert _value(collector, "probe_map_entries") == AT_ONCE
        peaks.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
    threads.ids = range(0)
    assert _value(collector, "probe_map_entries") == 0
    assert collector.start_once().attachment._map("thread_kinds").entries() == {}
    assert _value(collector, "probe_map_dropped") == 0
    assert peaks[-1] <= 1.05 * peaks[9]


def test_dropped_entries_of_a_full_map_are_counted(collector: ProbesCollector, threads: _Threads) -> None:
    threads.ids = range(1, ROOM + 101)
    assert _value(collector, "probe_map_entries") == ROOM
    assert _value(collector, "probe_map_dropped") == 200  # 100 ids too many in each of two scrapes
    threads.ids = range(1, 101)
    assert _value(collector, "probe_map_entries") == 100
