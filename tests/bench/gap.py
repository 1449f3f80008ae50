"""Whether a client waits longer while dumps are taken back to back: ``python -m bench gap``.

The arms: nothing (control), looks, and the same CPU time burnt by a process that looks at nothing, which
tells competition for the CPUs from anything that looking does to the server.
"""

from __future__ import annotations

import time
from dataclasses import asdict
from statistics import median
from typing import TYPE_CHECKING, Any

from bench.alternating import CONTROL, Trial, Window, alternate, judge
from bench.children import Child
from bench.scene import busy, crowded, say
from bench.stats import histogram_quantile
from bench.tables import interval, percent, table
from workloads import LatencyProbe

if TYPE_CHECKING:
    from collections.abc import Callable

    from bench.settings import Settings

LOOKS = "looks"
BURN = "CPU burnt"
_ARMS = (CONTROL, LOOKS, BURN)

#: What is told of each window, and how.
_METRICS = {"longest_ms": "longest gap ms", "p99_ms": "p99 ms", "p50_ms": "median ms"}


def run(name: str, settings: Settings) -> dict[str, Any]:
    """One server: windows that alternate."""
    with (
        crowded(name, settings.connections, mixed=True) as server,
        busy(server, settings.load),
        Child("looker", str(server.pid)) as looker,
        LatencyProbe(server, realtime=True) as probe,
    ):
        looker.ask(f"rest {settings.pause}")
        time.sleep(settings.gap_window)
        looker.ask("pause")
        busy_s = median(cost["cpu_ms"] for cost in looker.ask("take")) / 1000
        trials = alternate(
            _ARMS,
            settings.gap_rounds,
            _window(looker, probe, settings, busy_s),
            lambda number: say(f"{name}: round {number + 1} of {settings.gap_rounds}"),
        )
    return {
        "clients": settings.load,
        "pause_s": settings.pause,
        "window_s": settings.gap_window,
        "burnt_ms": busy_s * 1000,
        "trials": [asdict(trial) for trial in trials],
    }


def _window(looker: Child, probe: LatencyProbe, settings: Settings, busy_s: float) -> Callable[[str], Window]:
    orders = {
        CONTROL: "pause",
        LOOKS: f"rest {settings.pause}",
        BURN: f"burn {settings.pause} {busy_s}",
    }

    def window(arm: str) -> Window:
        looker.ask(orders[arm])
        probe.take()
        time.sleep(settings.gap_window)
        gaps = probe.take()
        looker.ask("pause")
        return {
            "longest_ms": gaps.longest_us / 1000,
            "p99_ms": histogram_quantile(gaps.histogram, 0.99) / 1000,
            "p50_ms": histogram_quantile(gaps.histogram, 0.5) / 1000,
            "answers": gaps.count,
            "looks": len(looker.ask("take")),
        }

    return window


def report(results: dict[str, Any]) -> str:
    """One row for each server, arm and metric."""
    header = ("server", "windows", "metric", "pairs", "without", "with", "change (95 % interval)",
              "beyond the control (95 % interval)", "verdict")  # fmt: skip
    rows = []
    notes = []
    for name, result in results.items():
        trials = [Trial(**trial) for trial in result["trials"]]
        looks = [trial.during["looks"] for trial in trials if trial.arm == LOOKS]
        notes.append(
            f"{name}: {sum(looks):,.0f} looks, {median(looks) / result['window_s']:.0f} a second;"
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
