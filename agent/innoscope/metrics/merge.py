"""Merge the samples of a server's collectors into one value per series, within the declared label bounds."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from innoscope.common.labels import label as bounded_label
from innoscope.common.samples import Sample
from innoscope.metrics.counters import NEVER_RESET, Counters
from innoscope.metrics.recent_values import RecentValues

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from innoscope.common.samples import Outcome, Value
    from innoscope.metrics.counters import Life
    from innoscope.metrics.registry import Metric, Registry

_log = logging.getLogger(__name__)

#: Maximum number of dropped series to remember, so that each is counted only once.
_MAX_DROPPED: Final = 10_000
#: Values of the ``reason`` label for a failed collector. An outcome's ``reason`` is one of them, followed by
#: a colon and a message.
REASONS: Final = frozenset(
    {"timeout", "denied", "refused", "gone", "stopped", "rights", "unsupported", "error"}
)


@dataclass(frozen=True, slots=True)
class ServerOutcomes:
    """The outcomes of one server's collectors. ``server`` is "" for Innoscope's own metrics."""

    server: str
    life: Life
    outcomes: tuple[Outcome, ...]


class ExportedSeries(NamedTuple):
    """One series to export."""

    metric: Metric
    server: str
    labels: tuple[str, ...]
    value: Value


def failure(outcome: Outcome) -> tuple[str, str]:
    """Split a failed outcome's ``reason`` at the first colon, and return ``(reason, message)``."""
    text = outcome.reason or "error: no reason was given"
    reason, colon, words = text.partition(": ")
    return (reason, words) if colon and reason in REASONS else ("error", text)


class _ServerState:
    """The state of one server between scrapes: its counters and accepted label values."""

    def __init__(self) -> None:
        self.counters = Counters()
        self.accepted: dict[tuple[str, int], RecentValues[str]] = {}


class Merger:
    """Merges the outcomes of all servers. ``keep_only`` removes the state of servers that no longer exist.

    ``dropped`` is the number of series omitted so far because a label had an undeclared value or too many
    values. ``clock`` is monotonic.
    """

    def __init__(self, registry: Registry, clock: Callable[[], float] = time.monotonic) -> None:
        self.dropped = 0
        self._registry, self._clock = registry, clock
        self._servers: dict[str, _ServerState] = {}
        self._dropped: RecentValues[int] = RecentValues(_MAX_DROPPED)  # hashes of the series
        self._unknown: set[tuple[str, str]] = set()

    def keep_only(self, servers: Iterable[str]) -> None:
        """Remove the state of all servers except ``servers``. Keep the state of Innoscope's own metrics."""
        names = {"", *servers}
        self._servers = {name: state for name, state in self._servers.items() if name in names}

    def merge(self, server: ServerOutcomes) -> list[ExportedSeries]:
        """Return one value per series, from the best source, with bounded labels and monotonic counters."""
        state = self._servers.setdefault(server.server, _ServerState())
        best: dict[tuple[str, tuple[str, ...]], tuple[int, Value]] = {}
        for outcome in server.outcomes:
            ranks: dict[str, int | None] = {}
            for sample in outcome.samples:
                if sample.metric not in ranks:
                    ranks[sample.metric] = self._rank(sample, outcome.collector)
                rank = ranks[sample.metric]
                key = (sample.metric, tuple(map(bounded_label, sample.labels)))
                if rank is not None and (key not in best or rank < best[key][0]):
                    best[key] = (rank, sample.value)
        series = []
        for (name, labels), (rank, value) in best.items():
            metric = self._registry[name]
            if self._bounded(server.server, state, metric, labels):
                if metric.kind in ("counter", "histogram") and name not in NEVER_RESET:
                    value = state.counters.settle((name, labels), metric.sources[rank], server.life, value)
                series.append(ExportedSeries(metric, server.server, labels, value))
        return series

    def _rank(self, sample: Sample, collector: str) -> int | None:
        """Return the collector's rank among the metric's sources.

        If the sample is not declared for this collector, log a warning once and return None.
        """
        if sample.metric in self._registry:
            metric = self._registry[sample.metric]
            if collector in metric.sources and len(sample.labels) == len(metric.labels):
                return metric.sources.index(collector)
        if (sample.metric, collector) not in self._unknown:
            self._unknown.add((sample.metric, collector))
            _log.warning("undeclared sample omitted", extra={"metric": sample.metric, "collector": collector})
        return None

    def _bounded(self, server: str, state: _ServerState, metric: Metric, labels: tuple[str, ...]) -> bool:
        """Return whether all label values are within their bounds; if not, count the series as dropped."""
        now = self._clock()
        for place, (label, value) in enumerate(zip(metric.labels, labels, strict=True)):
            if label.values is not None:
                within = value in label.values
            elif metric.kind == "info":
                within = True  # the collector itself limits the number of series
            else:
                accepted = state.accepted.setdefault((metric.name, place), RecentValues(label.most))
                within = accepted.see(value, now) or self._accept(state, metric, place, value)
            if not within:
                self._drop(hash((server, metric.name, labels)), now)
                return False
        return True

    def _accept(self, state: _ServerState, metric: Metric, place: int, value: str) -> bool:
        """Accept a new label value if there is room, or if another one has not been seen for an hour."""
        now = self._clock()
        accepted = state.accepted[metric.name, place]
        for old in accepted.make_room(now):
            state.counters.forget(metric.name, place, old)
        return accepted.add(value, now)

    def _drop(self, series: int, now: float) -> None:
        if not self._dropped.see(series, now):
            self._dropped.make_room(now)
            self.dropped += self._dropped.add(series, now)


def about(outcomes: Iterable[Outcome]) -> list[Sample]:
    """Return metrics about the collectors themselves: success, duration, and the reason for a failure."""
    found = []
    for outcome in outcomes:
        name = (outcome.collector,)
        found.append(Sample("collector_success", int(outcome.success), name))
        found.append(Sample("collector_duration_seconds", outcome.seconds, name))
        if not outcome.success:
            found.append(Sample("collector_failure_info", 1, (*name, failure(outcome)[0])))
    return found
