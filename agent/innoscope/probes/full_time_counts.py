"""Counts as they would be had every probe been attached all the time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from innoscope.probes.slots import default_slots

if TYPE_CHECKING:
    from collections.abc import Mapping

    from innoscope.probes.attachment import Reading


class Totals:
    """Adds up what is new in each reading, times the scale of the probes that fed it.

    Values are floats inside and never go down; without duty cycles they are exact.
    """

    def __init__(self) -> None:
        slots = default_slots()
        self.counters = [0.0] * slots.counter_count
        self.histograms: list[list[float]] = []
        self._last: Reading | None = None

    def add(self, reading: Reading, scales: Mapping[str, float]) -> None:
        """``scales`` says for metrics fed on a duty cycle how many times more there was than was seen."""
        last = self._last
        self._last = reading
        if not self.histograms:
            self.histograms = [[0.0] * len(words) for words in reading.histograms]
        slots = default_slots()
        for slot in slots.counters.values():
            scale = scales.get(slot.metric, 1.0)
            for index in range(slot.first, slot.first + slot.count):
                before = last.counters[index] if last else 0
                self.counters[index] += (reading.counters[index] - before) * scale
        for slot in slots.histograms.values():
            scale = scales.get(slot.metric, 1.0)
            for index in range(slot.first, slot.first + slot.count):
                self._add_histogram(index, reading, last, scale)

    def _add_histogram(self, index: int, reading: Reading, last: Reading | None, scale: float) -> None:
        words = reading.histograms[index]
        before = last.histograms[index] if last else None
        if words == before:
            return
        total = self.histograms[index]
        for place, word in enumerate(words):
            total[place] += (word - (before[place] if before else 0)) * scale
