"""Compare probes with the server's own counters, to detect dead or partly inlined function copies.

After link-time optimization, only some of the calls may go through the copy that has the symbol. Counting
references to that copy does not reveal this, but the server's own counter of the same event does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from innoscope.probes.catalog import Probe

#: Minimum number of events for a comparison.
ENOUGH: Final = 200
#: A probe under-counts if it counts less than this share of the events. The two counts are read one after the
#: other while the server is working, but that explains only a far smaller difference.
FLOOR: Final = 0.9


@dataclass(slots=True)
class _Baseline:
    """The counts of the probe and of the server at the start of the comparison."""

    probe: float
    server: float


class SelfTest:
    """A comparison of the metrics of probes that have a ``check`` with the server's own counters."""

    def __init__(self, probes: Iterable[Probe]) -> None:
        self._checks = {probe.name: probe.check for probe in probes if probe.check}
        self._baselines: dict[str, _Baseline] = {}
        self._notes: dict[str, str] = {}

    def compare(self, probed: Mapping[str, float], server: Mapping[str, float]) -> dict[str, str]:
        """Return a note for each under-counting probe. ``probed`` is keyed by metric, ``server`` by counter.

        Unavailable counters (no SQL, no layout) are not compared. A note stays until its probe is compared
        again.
        """
        for name, check in self._checks.items():
            if check.metric in probed and check.counter in server:
                self._compare_one(name, check.counter, probed[check.metric], server[check.counter])
        return dict(self._notes)

    def _compare_one(self, name: str, counter: str, probed: float, server: float) -> None:
        baseline = self._baselines.setdefault(name, _Baseline(probed, server))
        happened = server - baseline.server
        if happened < 0:  # another server process, or the counter was reset
            self._baselines[name] = _Baseline(probed, server)
        elif happened >= ENOUGH:
            counted = probed - baseline.probe
            self._baselines[name] = _Baseline(probed, server)
            if counted < FLOOR * happened:
                self._notes[name] = (
                    f"under-counts: counted {counted:,.0f} of {happened:,.0f} ({counter}); "
                    "some of its calls are inlined, or it is a dead copy"
                )
            else:
                self._notes.pop(name, None)
