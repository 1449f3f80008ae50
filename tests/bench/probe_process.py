"""Helper process: compile the probes of one server once, and let their governor attach and detach them.

Arguments: pid, budget, families. Each line of input is a command, and each reply is one line of JSON:

- ``points``: return the names of the probes whose functions were found.
- ``settle``: let the governor measure the cost of each probe.
- ``on``, ``off``: attach or detach the probes.
- ``begin``, ``end``: mark a window between ``on`` and ``off``; ``end`` returns hits and cost since ``begin``.
"""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any

from bench.helper_process import next_command, reply
from innoscope.metrics.collectors.probes import ProbesCollector
from innoscope.target.discover import find_one

if TYPE_CHECKING:
    from innoscope.probes.governor import Governor

#: Number of decisions, one per second, until the governor has measured all rates and has settled.
_SETTLED = 10
#: Number of decisions before a window: enough to measure the current rates for one full period.
_READY = 2
_STEP_S = 0.02


class _Meter:
    """Hits and cost of the probes since ``begin``."""

    def __init__(self, governor: Governor) -> None:
        self._governor = governor
        self._before = (0.0, 0.0, 0)

    def begin(self) -> None:
        self._before = self._reading()

    def end(self) -> dict[str, Any]:
        began, cost, hits = self._before
        ended, cost_then, hits_then = self._reading()
        reports = self._governor.report()
        cost_per_second = (cost_then - cost) / (ended - began)
        return {
            "cost_per_second": cost_per_second,
            "spent": cost_per_second / self._governor.cpus,
            "hits_per_second": (hits_then - hits) / (ended - began),
            "attached": sum(report.state == "attached" for report in reports),
            "cycled": {report.probe: report.duty for report in reports if report.state in {"sampled", "off"}},
        }

    def _reading(self) -> tuple[float, float, int]:
        self._governor.refresh()
        reports = self._governor.report()
        return (
            time.monotonic(),
            sum(report.cost_seconds for report in reports),
            sum(report.hits for report in reports),
        )


def _await_decisions(governor: Governor, count: int) -> None:
    wanted = governor.decisions + count
    while governor.decisions < wanted:
        time.sleep(_STEP_S)


def _execute(command: str, governor: Governor, meter: _Meter) -> Any:
    match command:
        case "points":
            return [point.name for point in governor.attachment.points]
        case "settle" | "on":
            governor.start()
            _await_decisions(governor, _SETTLED if command == "settle" else _READY)
            if command == "settle":
                governor.stop()
        case "off":
            governor.stop()
        case "begin":
            meter.begin()
        case "end":
            return meter.end()
        case _:
            raise SystemExit(f"no such command: {command}")
    return "done"


def main() -> None:
    """Execute commands until the input ends."""
    pid, budget, *families = sys.argv[1:]
    collector = ProbesCollector(find_one(int(pid)), families=frozenset(families), budget=float(budget))
    governor = collector.start()
    governor.stop()
    meter = _Meter(governor)
    reply("ready")
    try:
        while (command := next_command(None)) is not None:
            reply(_execute(command[0], governor, meter))
    finally:
        collector.close()


if __name__ == "__main__":
    main()
