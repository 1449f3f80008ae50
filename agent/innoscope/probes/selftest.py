"""Whether a probe sees what the server itself counts: dead and partly inlined copies of functions do not.

Link-time optimisation leaves functions of which only some calls go through the copy that has the name. The
number of references cannot tell; the server's own counter of the same thing can.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from innoscope.probes.catalog import Probe

#: Fewer events than this say nothing.
ENOUGH: Final = 200
#: A probe that sees less than this share under-counts. Edges of the two readings make up for far less.
FLOOR: Final = 0.9


@dataclass(slots=True)
class _Since:
    """Both counts when the comparison began."""

    seen: float
    told: float


class SelfTest:
    """Compares the metrics of probes that have a ``check`` in the catalog with the server's counters."""

    def __init__(self, probes: Iterable[Probe]) -> None:
        self._checks = {probe.name: probe.check for probe in probes if probe.check}
        self._since: dict[str, _Since] = {}
        self._notes: dict[str, str] = {}

    def compare(self, seen: Mapping[str, float], told: Mapping[str, float]) -> dict[str, str]:
        """What to say of each probe that under-counts; ``seen`` by metric, ``told`` by counter, both totals.

        A counter that is not told (no SQL, no layout) checks nothing. Verdicts stand until the next one.
        """
        for name, check in self._checks.items():
            if check.metric in seen and check.counter in told:
                self._compare_one(name, check.counter, seen[check.metric], told[check.counter])
        return dict(self._notes)

    def _compare_one(self, name: str, counter: str, seen: float, told: float) -> None:
        since = self._since.setdefault(name, _Since(seen, told))
        happened = told - since.told
        if happened < 0:  # another server, or a counter that was reset
            self._since[name] = _Since(seen, told)
        elif happened >= ENOUGH:
            counted = seen - since.seen
            self._since[name] = _Since(seen, told)
            if counted < FLOOR * happened:
                self._notes[name] = (
                    f"under-counts: saw {counted:,.0f} of {happened:,.0f} ({counter}); "
                    "part of its calls is inlined, or it is a dead copy"
                )
            else:
                self._notes.pop(name, None)
