"""Keep exported counters monotonic when their source changes or restarts.

A probe's counts start at zero when it is attached, and the server's own counters when the server starts.
Between two scrapes, a counter's source can change, and the sensor or the server can restart.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

from innoscope.common.samples import Histogram

if TYPE_CHECKING:
    from collections.abc import Hashable

    from innoscope.common.samples import Value

    #: A metric's name and label values.
    Series: TypeAlias = tuple[str, tuple[str, ...]]

#: Collectors whose counters start at zero when the sensor restarts.
RESET_WITH_SENSOR: Final = frozenset({"probes", "waits"})
#: Log sequence numbers, which survive a server restart and are the same for all sources.
NEVER_RESET: Final = frozenset({"redo_written_bytes", "redo_flushed_bytes", "redo_checkpoint_bytes"})


@dataclass(frozen=True, slots=True)
class Life:
    """Identifies the server process and the sensor process that produced a counter's value."""

    server: Hashable
    sensor: Hashable


@dataclass(slots=True)
class _Track:
    source: str
    life: Life
    raw: float
    offset: float


class Counters:
    """Stores the last source value of each series, and the offset from it to the exported value."""

    def __init__(self) -> None:
        self._tracks: dict[Series, _Track] = {}
        self._histograms: dict[Series, _HistogramTrack] = {}

    def forget(self, name: str, place: int, value: str) -> None:
        """Forget the series of a metric whose label at ``place`` has this value."""
        for tracks in (self._tracks, self._histograms):
            for series in [one for one in tracks if one[0] == name and one[1][place] == value]:
                del tracks[series]

    def settle(self, series: Series, source: str, life: Life, raw: Value) -> Value:
        """Return the value to export, given the source's current value."""
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
    """Return the amount to add to the offset so that the series continues from its last value."""
    if source != track.source:
        return track.raw - raw
    if source in RESET_WITH_SENSOR and life.sensor != track.life.sensor:
        return track.raw
    if raw >= track.raw:
        return 0
    if life.server != track.life.server:
        return track.raw
    return track.raw - raw  # the source was reset: continue from the last exported value


class _HistogramTrack:
    """Adds a histogram's counts from before a reset to its current counts."""

    def __init__(self, life: Life, raw: Histogram) -> None:
        self._earlier = Histogram((), 0)
        self._life, self._raw = life, raw

    def settle(self, life: Life, raw: Histogram) -> Histogram:
        if life.sensor != self._life.sensor or raw.count < self._raw.count:
            self._earlier = self._earlier.plus(self._raw)
        self._life, self._raw = life, raw
        return self._earlier.plus(raw)
