"""Extrapolate counts to the full time, as if every probe had been attached all the time.

A probe on a duty cycle counts during a window and is detached during the pause after it. The hits of a window
are scaled up to cover the pause too. The counts owed for the pause are added gradually while it lasts.
Otherwise, a reader that sees only part of a cycle, such as `diagnose` with its few seconds, would get far
too many hits or none.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from innoscope.probes.descriptor_kinds import OTHER_FILE
from innoscope.probes.slots import default_slots

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from innoscope.probes.attachment import MapContents


@dataclass(frozen=True, slots=True)
class Share:
    """The extrapolation of a probe's hits.

    ``scale`` is the length of the cycle as a multiple of the window. ``due`` is the share of the counts owed
    for the pause that must be added now: 0 during a window, 1 at the end of a pause.
    """

    scale: float
    due: float


class _Series:
    """The extrapolated total of one counter, or of each word of one histogram."""

    __slots__ = ("_owed", "_seen", "total")

    def __init__(self, width: int) -> None:
        self.total = [0.0] * width
        self._seen: Sequence[int] = (0,) * width
        self._owed: list[float] | None = None  # None without a duty cycle

    def add(self, words: Sequence[int], share: Share | None) -> None:
        if share is None:  # attached all the time: there is no pause to extrapolate over
            self._owed = None
        elif self._owed is None:
            self._owed = [0.0] * len(self.total)
        if words != self._seen:
            for position, (word, before) in enumerate(zip(words, self._seen, strict=True)):
                self.total[position] += word - before
                if share is not None and self._owed is not None:
                    self._owed[position] += (word - before) * (share.scale - 1)
            self._seen = words
        if share is not None and share.due and self._owed is not None:
            for position, owed in enumerate(self._owed):
                self.total[position] += owed * share.due
                self._owed[position] = owed * (1 - share.due)

    def absorb(self, other: _Series) -> _Series:
        """Return this series plus the total of ``other``, which has ended, and all counts owed to it."""
        both = _Series(len(self.total))
        owed = other._owed or [0.0] * len(self.total)
        both.total = [sum(words) for words in zip(self.total, other.total, owed, strict=True)]
        both._seen, both._owed = self._seen, self._owed
        return both


class Totals:
    """Running totals. They are floats and never decrease. Without duty cycles they are exact.

    Only one thread at a time may call ``add``. Other threads may read the totals while it runs.
    """

    def __init__(self) -> None:
        slots = default_slots()
        self._counters = [_Series(1) for _ in range(slots.counter_count)]
        self._histograms: list[_Series] = []
        self._files: dict[bytes, _Series] = {}
        self._sites: dict[bytes, _Series] = {}

    @property
    def counters(self) -> list[float]:
        """Return the totals of the counters, by index in the map."""
        return [series.total[0] for series in self._counters]

    @property
    def histograms(self) -> list[list[float]]:
        """Return the words of the histograms, by index in the map."""
        return [series.total for series in self._histograms]

    @property
    def files(self) -> dict[bytes, list[float]]:
        """Return the words of the histograms in the ``files`` map, by key."""
        return {key: series.total for key, series in list(self._files.items())}

    @property
    def sites(self) -> dict[bytes, float]:
        """Return the totals in the ``sites`` map, by key."""
        return {key: series.total[0] for key, series in list(self._sites.items())}

    def add(
        self, contents: MapContents, shares: Mapping[str, Share], operations: Mapping[int, Share]
    ) -> None:
        """Add the increase of all counts since the last call.

        ``shares`` contains only metrics of probes on a duty cycle. ``operations`` is its counterpart for the
        operations of the ``files`` map.
        """
        slots = default_slots()
        for counter in slots.counters.values():
            share = shares.get(counter.metric)
            for index in range(counter.first, counter.first + counter.count):
                self._counters[index].add((contents.counters[index],), share)
        if not self._histograms:
            self._histograms = [_Series(len(words)) for words in contents.histograms]
        for histogram in slots.histograms.values():
            share = shares.get(histogram.metric)
            for index in range(histogram.first, histogram.first + histogram.count):
                self._histograms[index].add(contents.histograms[index], share)
        for key, words in contents.files.items():
            self._files.setdefault(key, _Series(len(words))).add(words, operations.get(operation(key)))
        if contents.deleted:
            self._files = self._without(contents.deleted)
        for key, words in contents.sites.items():
            self._sites.setdefault(key, _Series(1)).add(words, shares.get("latch_spin_waits"))

    def _without(self, deleted: Iterable[bytes]) -> dict[bytes, _Series]:
        """Return the series of all files except ``deleted``, whose totals go to the overflow entries.

        The dictionary is a new one, so that other threads see each total exactly once.
        """
        files = dict(self._files)
        for key in deleted:
            if (series := files.pop(key, None)) is not None:
                other = OTHER_FILE.to_bytes(4, sys.byteorder) + key[4:8]
                files[other] = files.get(other, _Series(len(series.total))).absorb(series)
        return files


def operation(key: bytes) -> int:
    """Return the operation in a key of the ``files`` map (struct file_key)."""
    return int.from_bytes(key[4:8], sys.byteorder)
