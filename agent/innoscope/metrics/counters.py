"""Keep exported counters monotonic when their source changes or restarts.

A probe counts since it was attached, the server's own counters since the server started. The source can
change between two scrapes, and the sensor or the server may have been restarted in between.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from innoscope.common.samples import Histogram

if TYPE_CHECKING:
    from collections.abc import Hashable

    from innoscope.common.samples import Value

#: Collectors that count from their start, and so from zero after a restart of the sensor.
RESET_WITH_SENSOR: Final = frozenset({"probes", "waits"})
#: Log sequence numbers continue after a restart of the server, and are the same for all sources.
NEVER_RESET: Final = frozenset({"redo_written_bytes", "redo_flushed_bytes", "redo_checkpoint_bytes"})


@dataclass(frozen=True, slots=True)
class Life:
    """Identify the processes that the counters belong to: the server's and the sensor's."""

    server: Hashable
    sensor: Hashable


@dataclass(slots=True)
class _Track:
    source: str
    life: Life
    raw: float
    offset: float


class Counters:
    """Keep each series' last exported value and its offset to the source's value."""

    def __init__(self) -> None:
        self._tracks: dict[Hashable, _Track] = {}
        self._histograms: dict[Hashable, _HistogramTrack] = {}

    def settle(self, series: Hashable, source: str, life: Life, raw: Value) -> Value:
        """Return the value to export for the source's current value."""
        if isinstance(raw, Histogram):
            known = self._histograms.get(series)
            if known is None:
                known = self._histograms[series] = _HistogramTrack(life, raw)
            return known.settle(life, raw)
        track = self._tracks.get(series)
        if track is None:
            self._tracks[series] = _Track(source, life, raw, 0)
            return raw
        track.offset += _correction(track, source, life, raw)
        track.source, track.life, track.raw = source, life, raw
        return raw + track.offset


def _correction(track: _Track, source: str, life: Life, raw: float) -> float:
    """Return the change of the offset that lets the series continue from its last value."""
    if source != track.source:
        return track.raw - raw
    if source in RESET_WITH_SENSOR and life.sensor != track.life.sensor:
        return track.raw
    if raw >= track.raw:
        return 0
    if life.server != track.life.server:
        return track.raw
    return track.raw - raw  # the source was reset: stay at the last value and count from here


class _HistogramTrack:
    """Add a histogram's counts from earlier sensors to those of the current one."""

    def __init__(self, life: Life, raw: Histogram) -> None:
        self._earlier = Histogram((), 0)
        self._life, self._raw = life, raw

    def settle(self, life: Life, raw: Histogram) -> Histogram:
        if life.sensor != self._life.sensor or raw.count < self._raw.count:
            self._earlier = self._earlier.plus(self._raw)
        self._life, self._raw = life, raw
        return self._earlier.plus(raw)
