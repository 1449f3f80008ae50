"""Measure a client's reply times while snapshots are taken back to back: ``python -m bench gap``.

There are three arms: no snapshots (the control); snapshots; and a process that takes no snapshots, but uses
the same CPU time. The last arm separates the competition for CPUs from other effects of snapshots.
"""

from __future__ import annotations

import time
from dataclasses import asdict
from statistics import median
from typing import TYPE_CHECKING, Any

from bench.helper_process import Helper
from bench.scene import busy, crowded, say
from bench.stats import gap_times
from bench.tables import interval, percent, table
from bench.trials import CONTROL, Trial, Window, alternate, judge
from workloads import LatencyProbe

if TYPE_CHECKING:
    from collections.abc import Callable

    from bench.settings import Settings

SNAPSHOTS = "snapshots"
BURN = "CPU burnt"
_ARMS = (CONTROL, SNAPSHOTS, BURN)

#: Reported metrics of each window, with their titles.
_METRICS = {"longest_ms": "longest gap ms", "p99_ms": "p99 ms", "p50_ms": "median ms"}


def run(name: str, settings: Settings) -> dict[str, Any]:
    """Measure one server in alternating windows."""
    with (
        crowded(name, settings.connections, mixed=True) as server,
        busy(server, settings.load),
        Helper("snapshot_process", str(server.pid), "auto") as snapshots,
        LatencyProbe(server, realtime=True) as probe,
    ):
        snapshots.command(f"rest {settings.pause}")
        time.sleep(settings.gap_window)
        snapshots.command("pause")
        busy_s = median(cost["cpu_ms"] for cost in snapshots.command("take")) / 1000
        trials = alternate(
            _ARMS,
            settings.gap_rounds,
            _window(snapshots, probe, settings, busy_s),
            lambda number: say(f"{name}: round {number + 1} of {settings.gap_rounds}"),
        )
    return {
        "clients": settings.load,
        "pause_s": settings.pause,
        "window_s": settings.gap_window,
        "burnt_ms": busy_s * 1000,
        "trials": [asdict(trial) for trial in trials],
    }


def _window(
    snapshots: Helper, probe: LatencyProbe, settings: Settings, busy_s: float
) -> Callable[[str], Window]:
    commands = {
        CONTROL: "pause",
        SNAPSHOTS: f"rest {settings.pause}",
        BURN: f"burn {settings.pause} {busy_s}",
    }

    def window(arm: str) -> Window:
        snapshots.command(commands[arm])
        probe.take()
        time.sleep(settings.gap_window)
        gaps = probe.take()
        snapshots.command("pause")
        return {
            **gap_times(gaps),
            "snapshots": len(snapshots.command("take")),
        }

    return window


def report(results: dict[str, Any]) -> str:
    """Return a table with one row for each server, arm and metric."""
    header = ("server", "windows", "metric", "pairs", "without", "with", "change (95 % interval)",
              "beyond the control (95 % interval)", "verdict")  # fmt: skip
    rows = []
    notes = []
    for name, result in results.items():
        trials = [Trial(**trial) for trial in result["trials"]]
        counts = [trial.during["snapshots"] for trial in trials if trial.arm == SNAPSHOTS]
        notes.append(
            f"{name}: {sum(counts):,.0f} snapshots, {median(counts) / result['window_s']:.0f} a second;"
            f" {result['clients']} clients as load."
        )
        for arm in _ARMS:
            for metric, title in _METRICS.items():
                verdict = judge(trials, arm, metric)
                beyond, words = _change(verdict.excess, verdict.excess_interval), verdict.words
                if arm == CONTROL:
                    beyond = words = "–"
                rows.append(
                    [
                        name, arm, title, str(sum(trial.arm == arm for trial in trials)),
                        f"{verdict.empty:.3g}", f"{verdict.value:.3g}",
                        _change(verdict.change, verdict.change_interval), beyond, words,
                    ]
                )  # fmt: skip
    return "\n\n".join([*notes, table(header, rows)])


def _change(value: float, bounds: tuple[float, float]) -> str:
    return f"{percent(value)} {interval(*bounds)}"
