"""Readings of all collectors, side by side, into snapshots: each series from its best source."""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING, Final

from innoscope.diagnose.evidence import Missing, Snapshot, keyed
from innoscope.metrics.collectors.runner import Runner
from innoscope.metrics.registry import default

if TYPE_CHECKING:
    from collections.abc import Iterable

    from innoscope.common.samples import Value
    from innoscope.metrics.collectors.runner import Collector

    #: Unix time, and what each collector told.
    _Reading = tuple[float, dict[str, dict[str, Value]]]


_ESTIMATED: Final = "probes"


class Readings:
    """Reads when it is told to. Counters of two sources are never mixed: the best one that told it twice.

    Readings older than ``span_s`` seconds are forgotten, none without it.
    """

    def __init__(self, collectors: Iterable[Collector], span_s: float | None = None) -> None:
        self._runner = Runner(collectors)
        self._span_s = span_s
        self._read: deque[_Reading] = deque()
        self._missing: dict[str, Missing] = {}
        self._told: set[str] = set()

    def read(self, patience_s: float) -> None:
        """One reading of each; who does not answer in time is waited for at the next."""
        at = time.time()
        self._runner.start()
        by_source: dict[str, dict[str, Value]] = {}
        for outcome in self._runner.outcomes(patience_s):
            if outcome.success:
                self._told.add(outcome.collector)
            else:
                reason, _, words = (outcome.reason or "error: unknown").partition(": ")
                self._missing[outcome.collector] = Missing(reason, words)
            by_source[outcome.collector] = keyed(outcome.samples)
        self._read.append((at, by_source))
        while self._span_s is not None and self._read[0][0] < at - self._span_s:
            self._read.popleft()

    def close(self) -> None:
        """Read no more."""
        self._runner.close()

    def between(self, begin: float, end: float) -> tuple[tuple[Snapshot, ...], dict[str, Missing]]:
        """The snapshots of that time, and the sources that never told anything with the reason."""
        readings = [one for one in self._read if begin <= one[0] <= end]
        chosen = _choose(readings)
        snapshots = tuple(
            Snapshot(
                at,
                {
                    key: by_source[source][key]
                    for key, source in chosen.items()
                    if key in by_source.get(source, ())
                },
            )
            for at, by_source in readings
        )
        return snapshots, {name: why for name, why in self._missing.items() if name not in self._told}


def _choose(readings: Iterable[_Reading]) -> dict[str, str]:
    """The source of each series: one that told it twice, not an estimate, then as metrics.yaml names them."""
    times: dict[str, dict[str, int]] = {}
    for _, by_source in readings:
        for source, values in by_source.items():
            for key in values:
                times.setdefault(key, {}).setdefault(source, 0)
                times[key][source] += 1
    return {key: max(found, key=lambda source: _worth(key, source, found)) for key, found in times.items()}


def _worth(key: str, source: str, told: dict[str, int]) -> tuple[bool, bool, int]:
    """A count of the server's own is exact; that of a probe is an estimate once its budget is spent."""
    metric = key.partition(".")[0]
    order = default()[metric].sources if metric in default() else ()
    place = order.index(source) if source in order else len(order)
    return told[source] > 1, source != _ESTIMATED, -place
