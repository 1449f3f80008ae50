"""Counters that never go backwards, whoever tells them.

A probe counts since it was attached, the server's own counters since the server started; either may be the
source at one scrape and the other at the next, and sensor or server may have been restarted in between.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from innoscope.common.samples import Histogram

if TYPE_CHECKING:
    from collections.abc import Hashable

    from innoscope.common.samples import Value

#: Collectors that count since they began, and so from zero after a restart of the sensor.
SINCE_WE_BEGAN: Final = frozenset({"probes", "waits"})
#: Log sequence numbers outlive a restart of the server and are the same for all sources.
LASTING: Final = frozenset({"redo_written_bytes", "redo_flushed_bytes", "redo_checkpoint_bytes"})


@dataclass(frozen=True, slots=True)
class Life:
    """Since when the numbers count: the server's process, and the sensor's."""

    server: Hashable
    sensor: Hashable


@dataclass(slots=True)
class _Track:
    source: str
    life: Life
    raw: float
    offset: float


class Counters:
    """What was exported last of each series, and by how much it differs from what its source says."""

    def __init__(self) -> None:
        self._tracks: dict[Hashable, _Track] = {}
        self._histograms: dict[Hashable, _Histograms] = {}

    def settle(self, series: Hashable, source: str, life: Life, raw: Value) -> Value:
        """The value to export for what ``source`` says now."""
        if isinstance(raw, Histogram):
            known = self._histograms.get(series)
            if known is None:
                known = self._histograms[series] = _Histograms(life, raw)
            return known.settle(life, raw)
        track = self._tracks.get(series)
        if track is None:
            self._tracks[series] = _Track(source, life, raw, 0)
            return raw
        track.offset += _correction(track, source, life, raw)
        track.source, track.life, track.raw = source, life, raw
        return raw + track.offset


def _correction(track: _Track, source: str, life: Life, raw: float) -> float:
    """By how much the offset must change so that the series goes on from where it was."""
    if source != track.source:
        return track.raw - raw
    if source in SINCE_WE_BEGAN and life.sensor != track.life.sensor:
        return track.raw
    if raw >= track.raw:
        return 0
    if life.server != track.life.server:
        return track.raw
    return track.raw - raw  # whoever counts lost its memory: stand still, and count on from here


class _Histograms:
    """One histogram's counts of sensors that are gone, and of the one that is there."""

    def __init__(self, life: Life, raw: Histogram) -> None:
        self._gone = Histogram((), 0)
        self._life, self._raw = life, raw

    def settle(self, life: Life, raw: Histogram) -> Histogram:
        if life.sensor != self._life.sensor or raw.count < self._raw.count:
            self._gone = self._gone.plus(self._raw)
        self._life, self._raw = life, raw
        return self._gone.plus(raw)
