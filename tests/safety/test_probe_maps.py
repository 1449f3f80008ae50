"""Test that the probes' BPF maps stay bounded under many thread ids, and that overflows are counted."""

from __future__ import annotations

import resource
import struct
from typing import TYPE_CHECKING, Final

import pytest

from innoscope.common.samples import Histogram, by_series
from innoscope.metrics.collectors.probes import ProbesCollector
from innoscope.probes.attachment import FILES_ROOM
from innoscope.target.discover import find_one
from scale import count
from servers import Server

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

IDS: Final = count(quick=200_000, full=1_000_000)
AT_ONCE: Final = 10_000
ROOM: Final = 16_384


FILES: Final = 4_096
SITES: Final = 1_024
#: Entries that the test leaves for the server.
SPARE: Final = 16
ROUNDS: Final = count(quick=5, full=200)
#: No descriptor of the server has this number.
CLOSED: Final = 1 << 20


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


@pytest.fixture
def files(server: Server) -> Iterator[ProbesCollector]:
    collector = ProbesCollector(find_one(server.pid), families=frozenset({"fsync", "spin"}), kinds=dict)
    collector.start()
    yield collector
    collector.close()


def _syncs(collector: ProbesCollector) -> int:
    """Return the number of syncs of files whose kind is unknown, because they are closed."""
    value = by_series(collector.collect()).get(("fsync_seconds", ("other",)))
    return value.count if isinstance(value, Histogram) else 0


def test_entries_of_closed_files_are_deleted_and_no_count_is_lost(files: ProbesCollector) -> None:
    attachment = files.start_once().attachment
    table = attachment.optional_map("files")
    assert table is not None
    before, added, number = _syncs(files), 0, CLOSED
    for _ in range(ROUNDS):
        for _ in range(FILES - SPARE - len(table.entries())):
            table.update(struct.pack("=II", number, 0), struct.pack("=41Q", 1000, 1, *[0] * 39))
            added, number = added + 1, number + 1
        assert _syncs(files) == before + added
        assert _syncs(files) == before + added  # the entries are deleted when they are read again
        assert len(table.entries()) < FILES - FILES_ROOM
        assert len(files._by_kind._counted) < FILES - FILES_ROOM
    assert attachment.dropped()["files"] == 0


def test_a_full_map_of_latch_sites_keeps_its_counts(files: ProbesCollector) -> None:
    """Fill the map of latch sites. Its keys are locations in the server's code and are never deleted."""
    table = files.start_once().attachment.optional_map("sites")
    assert table is not None
    lines = range(1, SITES - len(table.entries()) - SPARE)
    for line in lines:
        table.update(struct.pack("=QQ", 1, line), struct.pack("=Q", 7))
    for _ in range(3):
        sites = [one for one in files.collect() if one.metric == "latch_spin_waits"]
        assert sum(one.labels[0].startswith("0x1:") and one.value == 7 for one in sites) == len(lines)
