"""Readings of all collectors, side by side, into snapshots: each series from its best source."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from innoscope.collectors.runner import Runner
from innoscope.diagnose.evidence import Missing, Snapshot, keyed
from innoscope.metrics.registry import default

if TYPE_CHECKING:
    from collections.abc import Iterable

    from innoscope.collectors.runner import Collector
    from innoscope.metrics.model import Value


_ESTIMATED: Final = "probes"


class Readings:
    """Reads when it is told to. Counters of two sources are never mixed: the best one that told it twice."""

    def __init__(self, collectors: Iterable[Collector]) -> None:
        self._runner = Runner(collectors)
        self._read: list[tuple[float, dict[str, dict[str, Value]]]] = []
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

    def close(self) -> tuple[tuple[Snapshot, ...], dict[str, Missing]]:
        """The snapshots, and the sources that never told anything with the reason."""
        self._runner.close()
        chosen = self._choose()
        snapshots = tuple(
            Snapshot(
                at,
                {
                    key: by_source[source][key]
                    for key, source in chosen.items()
                    if key in by_source.get(source, ())
                },
            )
            for at, by_source in self._read
        )
        return snapshots, {name: why for name, why in self._missing.items() if name not in self._told}

    def _choose(self) -> dict[str, str]:
        """The source of each series: told twice, no estimate, then the first that metrics.yaml names."""
        times: dict[str, dict[str, int]] = {}
        for _, by_source in self._read:
            for source, values in by_source.items():
                for key in values:
                    times.setdefault(key, {}).setdefault(source, 0)
                    times[key][source] += 1
        return {
            key: max(found, key=lambda source: _worth(key, source, found)) for key, found in times.items()
        }


def _worth(key: str, source: str, told: dict[str, int]) -> tuple[bool, bool, int]:
    """A count of the server's own is exact; that of a probe is an estimate once its budget is spent."""
    metric = key.partition(".")[0]
    order = default()[metric].sources if metric in default() else ()
    place = order.index(source) if source in order else len(order)
    return told[source] > 1, source != _ESTIMATED, -place
