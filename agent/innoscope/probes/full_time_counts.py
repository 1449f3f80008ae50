"""Extrapolate counts to the full time, as if every probe had been attached all the time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from innoscope.probes.slots import default_slots

if TYPE_CHECKING:
    from collections.abc import Mapping

    from innoscope.probes.attachment import MapContents


class Totals:
    """Running totals. Each increase is multiplied by the extrapolation factor of the probes that counted it.

    Totals are floats and never decrease. Without duty cycles they are exact.
    """

    def __init__(self) -> None:
        slots = default_slots()
        self.counters = [0.0] * slots.counter_count
        self.histograms: list[list[float]] = []
        self._last: MapContents | None = None

    def add(self, contents: MapContents, scales: Mapping[str, float]) -> None:
        """Add the increase since the last call.

        ``scales`` maps each metric whose probes are on a duty cycle to its extrapolation factor.
        """
        last = self._last
        self._last = contents
        if not self.histograms:
            self.histograms = [[0.0] * len(words) for words in contents.histograms]
        slots = default_slots()
        for slot in slots.counters.values():
            scale = scales.get(slot.metric, 1.0)
            for index in range(slot.first, slot.first + slot.count):
                before = last.counters[index] if last else 0
                self.counters[index] += (contents.counters[index] - before) * scale
        for slot in slots.histograms.values():
            scale = scales.get(slot.metric, 1.0)
            for index in range(slot.first, slot.first + slot.count):
                self._add_histogram(index, contents, last, scale)

    def _add_histogram(
        self, index: int, contents: MapContents, last: MapContents | None, scale: float
    ) -> None:
        words = contents.histograms[index]
        before = last.histograms[index] if last else None
        if words == before:
            return
        total = self.histograms[index]
        for position, word in enumerate(words):
            total[position] += (word - (before[position] if before else 0)) * scale
