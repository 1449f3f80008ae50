"""Assign each series of a probe metric an index in the BPF maps, according to ``metrics.yaml``."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from innoscope.common import metrics_file

if TYPE_CHECKING:
    from collections.abc import Mapping

    from innoscope.common.metrics_file import Declaration

#: Metrics that are computed from the maps ``sites`` and ``files``.
_ELSEWHERE = frozenset({"latch_spin_waits", "fsync_seconds", "read_seconds"})


@dataclass(frozen=True, slots=True)
class Slot:
    """The map entries of one metric: ``count`` entries from index ``first``, one per value of its only label.

    ``labels`` contains the label values: () for a metric without a label, None if assigned at run time.
    """

    metric: str
    first: int
    count: int
    labels: tuple[str, ...] | None

    def index(self, label: str) -> int:
        """Return the index of a label value, from 0. Raise ValueError if it is unknown."""
        return (self.labels or ()).index(label)


@dataclass(frozen=True, slots=True)
class Slots:
    """The slots of all metrics in the maps ``counters`` and ``histograms``."""

    counters: dict[str, Slot]
    histograms: dict[str, Slot]

    @property
    def counter_count(self) -> int:
        """Return the number of entries of the ``counters`` map."""
        return sum(slot.count for slot in self.counters.values())

    @property
    def histogram_count(self) -> int:
        """Return the number of entries of the ``histograms`` map, without the calibration entry."""
        return sum(slot.count for slot in self.histograms.values())


@cache
def default_slots() -> Slots:
    """Return the slots of the installed metrics."""
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
