"""Where each series of a probe metric lies in the BPF maps: decided once, from ``metrics.yaml``."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from innoscope.common import metrics_file

if TYPE_CHECKING:
    from collections.abc import Mapping

    from innoscope.common.metrics_file import Declaration

#: Counted by key in maps of their own, or not counted in the kernel at all.
_ELSEWHERE = frozenset({"latch_spin_waits", "fsync_seconds", "read_seconds"})


@dataclass(frozen=True, slots=True)
class Slot:
    """One metric's place: ``count`` entries from ``first``, one for each value of its only label.

    ``labels`` are the values; () for a metric without a label, None where we give out the values ourselves.
    """

    metric: str
    first: int
    count: int
    labels: tuple[str, ...] | None

    def index(self, label: str) -> int:
        """The place of a label's value, from 0. ValueError for an unknown one."""
        return (self.labels or ()).index(label)


@dataclass(frozen=True, slots=True)
class Slots:
    """All places in ``counters`` and in ``histograms``."""

    counters: dict[str, Slot]
    histograms: dict[str, Slot]

    @property
    def counter_count(self) -> int:
        """Entries of the map ``counters``."""
        return sum(slot.count for slot in self.counters.values())

    @property
    def histogram_count(self) -> int:
        """Entries of the map ``histograms``."""
        return sum(slot.count for slot in self.histograms.values())


@cache
def default_slots() -> Slots:
    """Return the places for the metrics that come with the program."""
    metrics = metrics_file.installed()
    return Slots(_lay_out(metrics, "counter"), _lay_out(metrics, "histogram"))


def _lay_out(metrics: Mapping[str, Declaration], kind: str) -> dict[str, Slot]:
    slots: dict[str, Slot] = {}
    first = 0
    for name, metric in metrics.items():
        counted = metric.kind == kind and metric.sources[0] == "probes"
        if not counted or name in _ELSEWHERE or name.startswith("probe_"):
            continue
        slot = _slot(name, first, metric)
        slots[name] = slot
        first += slot.count
    return slots


def _slot(name: str, first: int, metric: Declaration) -> Slot:
    if not metric.labels:
        return Slot(name, first, 1, ())
    [values] = metric.labels.values()
    if isinstance(values, int):
        return Slot(name, first, values, None)
    return Slot(name, first, len(values), values)
