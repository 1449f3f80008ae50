"""From what all collectors said of a server to one value for each series, within the declared bounds."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from innoscope.common.samples import Sample
from innoscope.metrics.counters import LASTING, Counters

if TYPE_CHECKING:
    from collections.abc import Iterable

    from innoscope.common.samples import Outcome, Value
    from innoscope.metrics.counters import Life
    from innoscope.metrics.registry import Metric, Registry

_log = logging.getLogger(__name__)

#: Distinct series that are remembered as dropped, so that each counts once.
_DROPPED_KEPT: Final = 10_000
#: Why a collector failed, as the label has it. An outcome's ``reason`` begins with one of them and a colon.
REASONS: Final = frozenset(
    {"timeout", "denied", "refused", "gone", "stopped", "rights", "unsupported", "error"}
)


@dataclass(frozen=True, slots=True)
class Reading:
    """What was learnt of one server in one gathering. ``server`` is "" for what is about ourselves."""

    server: str
    life: Life
    outcomes: tuple[Outcome, ...]


class Series(NamedTuple):
    """One series to export."""

    metric: Metric
    server: str
    labels: tuple[str, ...]
    value: Value


def failure(outcome: Outcome) -> tuple[str, str]:
    """``(reason, words)`` of an outcome that failed: "denied: access denied for ann" → both parts."""
    text = outcome.reason or "error: it did not say why"
    reason, colon, words = text.partition(": ")
    return (reason, words) if colon and reason in REASONS else ("error", text)


class _Kept:
    """What must outlive a scrape of one server: how counters went on, and which label values were let in."""

    def __init__(self) -> None:
        self.counters = Counters()
        self.let_in: dict[tuple[str, int], set[str]] = {}


class Merger:
    """Merges the readings of all servers. What it keeps of one is for ``keep_only`` to drop."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._kept: dict[str, _Kept] = {}
        self._dropped: set[tuple[str, str, tuple[str, ...]]] = set()
        self._unknown: set[tuple[str, str]] = set()

    @property
    def dropped(self) -> int:
        """Series left out so far because a label had too many values."""
        return len(self._dropped)

    def keep_only(self, servers: Iterable[str]) -> None:
        """Drop what is kept of all servers but these, and of ourselves."""
        names = {"", *servers}
        self._kept = {name: kept for name, kept in self._kept.items() if name in names}

    def merge(self, reading: Reading) -> list[Series]:
        """One value a series: from its best source, bounded, and going on from the last scrape."""
        kept = self._kept.setdefault(reading.server, _Kept())
        best: dict[tuple[str, tuple[str, ...]], tuple[int, Value]] = {}
        for outcome in reading.outcomes:
            ranks: dict[str, int | None] = {}
            for sample in outcome.samples:
                if sample.metric not in ranks:
                    ranks[sample.metric] = self._rank(sample, outcome.collector)
                rank = ranks[sample.metric]
                key = (sample.metric, sample.labels)
                if rank is not None and (key not in best or rank < best[key][0]):
                    best[key] = (rank, sample.value)
        found = []
        for (name, labels), (rank, value) in best.items():
            metric = self._registry[name]
            if self._bounded(reading.server, kept, metric, labels):
                if metric.kind in ("counter", "histogram") and name not in LASTING:
                    value = kept.counters.settle((name, labels), metric.sources[rank], reading.life, value)
                found.append(Series(metric, reading.server, labels, value))
        return found

    def _rank(self, sample: Sample, collector: str) -> int | None:
        """The collector's place among the metric's sources; None, said once, if it has no business there."""
        if sample.metric in self._registry:
            metric = self._registry[sample.metric]
            if collector in metric.sources and len(sample.labels) == len(metric.labels):
                return metric.sources.index(collector)
        if (sample.metric, collector) not in self._unknown:
            self._unknown.add((sample.metric, collector))
            _log.warning(
                "undeclared sample left out", extra={"metric": sample.metric, "collector": collector}
            )
        return None

    def _bounded(self, server: str, kept: _Kept, metric: Metric, labels: tuple[str, ...]) -> bool:
        """Whether all label values are within their bounds. A value that was let in once stays."""
        for place, (label, value) in enumerate(zip(metric.labels, labels, strict=True)):
            if label.values is not None:
                within = value in label.values
            elif metric.kind == "info":
                within = True  # one series: the collector tells one at a time
            else:
                let_in = kept.let_in.setdefault((metric.name, place), set())
                within = value in let_in or len(let_in) < label.most
                if within:
                    let_in.add(value)
            if not within:
                if len(self._dropped) < _DROPPED_KEPT:
                    self._dropped.add((server, metric.name, labels))
                return False
        return True


def about(outcomes: Iterable[Outcome]) -> list[Sample]:
    """The metrics on the collectors themselves: did they succeed, how long did it take, and why not."""
    found = []
    for outcome in outcomes:
        name = (outcome.collector,)
        found.append(Sample("collector_success", int(outcome.success), name))
        found.append(Sample("collector_duration_seconds", outcome.seconds, name))
        if not outcome.success:
            found.append(Sample("collector_failure_info", 1, (*name, failure(outcome)[0])))
    return found
