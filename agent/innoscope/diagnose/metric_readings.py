"""Run all collectors in parallel, and merge their readings. Each series comes from its best source."""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING, Final

from innoscope.common import slowness
from innoscope.diagnose.evidence import MetricReadings, MissingSource, keyed
from innoscope.metrics.collectors.runner import Runner
from innoscope.metrics.registry import default

if TYPE_CHECKING:
    from collections.abc import Iterable

    from innoscope.common.samples import Value
    from innoscope.metrics.collectors.runner import Collector

    #: Unix time, and each collector's values.
    _Reading = tuple[float, dict[str, dict[str, Value]]]


_ESTIMATED: Final = "probes"


class ReadingHistory:
    """Runs the collectors on request and stores the readings.

    All values of a series come from one source, because counters from two sources cannot be mixed. That
    source is the best one that provided the series at least twice, if there is one.

    Readings older than ``span_s`` seconds are dropped; by default, all readings are stored.
    """

    def __init__(self, collectors: Iterable[Collector], span_s: float | None = None) -> None:
        self._runner = Runner(collectors, scale=slowness.factor())
        self._span_s = span_s
        self._read: deque[_Reading] = deque()
        self._missing: dict[str, MissingSource] = {}
        self._succeeded: set[str] = set()

    def read(self, patience_s: float) -> None:
        """Run all collectors once, and wait up to ``patience_s`` seconds for their results.

        Results that arrive later are discarded.
        """
        at = time.time()
        self._runner.start()
        by_source: dict[str, dict[str, Value]] = {}
        for outcome in self._runner.outcomes(patience_s):
            if outcome.success:
                self._succeeded.add(outcome.collector)
            else:
                reason, _, words = (outcome.reason or "error: unknown").partition(": ")
                if reason != "timeout" or outcome.collector not in self._missing:  # others say more
                    self._missing[outcome.collector] = MissingSource(reason, words)
            by_source[outcome.collector] = keyed(outcome.samples)
        self._read.append((at, by_source))
        while self._span_s is not None and self._read[0][0] < at - self._span_s:
            self._read.popleft()

    def close(self) -> None:
        """Stop the collectors."""
        self._runner.close()

    def between(
        self, begin: float, end: float
    ) -> tuple[tuple[MetricReadings, ...], dict[str, MissingSource]]:
        """Return the readings between two Unix times, and the failures of sources that never succeeded."""
        records = [one for one in self._read if begin <= one[0] <= end]
        chosen = _best_sources(records)
        readings = tuple(
            MetricReadings(
                at,
                {
                    key: by_source[source][key]
                    for key, source in chosen.items()
                    if key in by_source.get(source, ())
                },
            )
            for at, by_source in records
        )
        return readings, {name: why for name, why in self._missing.items() if name not in self._succeeded}


def _best_sources(readings: Iterable[_Reading]) -> dict[str, str]:
    """Return the best source of each series.

    Prefer a source that provided the series more than once, then one that does not estimate it, then the
    first one in metrics.yaml.
    """
    times: dict[str, dict[str, int]] = {}
    for _, by_source in readings:
        for source, values in by_source.items():
            for key in values:
                times.setdefault(key, {}).setdefault(source, 0)
                times[key][source] += 1
    return {key: max(found, key=lambda source: _rank(key, source, found)) for key, found in times.items()}


def _rank(key: str, source: str, readings_of: dict[str, int]) -> tuple[bool, bool, int]:
    """Return a source's rank; higher is better.

    The server's own counters are exact, while a probe's counts are estimates once its budget is used up.
    """
    metric = key.partition(".")[0]
    order = default()[metric].sources if metric in default() else ()
    place = order.index(source) if source in order else len(order)
    return readings_of[source] > 1, source != _ESTIMATED, -place
