"""Measure the cost of one snapshot per second: ``python -m bench overhead``.

The benchmark measures the CPU time and memory of the process that takes the snapshots, and the effect on the
server.
"""

from __future__ import annotations

import time
from dataclasses import asdict
from statistics import median
from typing import TYPE_CHECKING, Any

from bench import pairs
from bench.helper_process import Helper
from bench.proc import cpu_seconds, memory_mb
from bench.scene import busy, crowded, say
from bench.tables import table
from bench.trials import CONTROL, Trial, Window, alternate

if TYPE_CHECKING:
    from collections.abc import Callable

    from bench.settings import Settings
    from servers import Server
    from workloads import Cpu

SNAPSHOTS = "snapshots"

#: Seconds between two samples of the memory and CPU time of the process that takes the snapshots.
_READING = 5.0

#: Fraction of the long run after which the memory "at the start" is measured.
_SETTLED = 0.1


def run(name: str, settings: Settings) -> dict[str, Any]:
    """Measure one server: first in the long run, then in pairs of windows."""
    with (
        crowded(name, settings.connections, mixed=False) as server,
        busy(server, max(1, settings.load)) as load,
        Helper("snapshot_process", str(server.pid), "auto") as snapshots,
    ):
        assert load is not None
        snapshots.command("every 1")  # from here on, take one snapshot per second
        own = _long_run(name, snapshots, settings.seconds)
        snapshots.command("pause")
        trials = alternate(
            (CONTROL, SNAPSHOTS),
            settings.pair_rounds,
            _window(server, load, snapshots, settings.pair_window),
            lambda number: say(f"{name}: pair {number + 1} of {settings.pair_rounds}"),
        )
    return {
        "clients": max(1, settings.load),
        "own": own,
        "window_s": settings.pair_window,
        "trials": [asdict(trial) for trial in trials],
    }


def _long_run(name: str, snapshots: Helper, seconds: float) -> dict[str, Any]:
    """Measure for ``seconds``, with one snapshot per second; report the CPU time of startup separately."""
    say(f"{name}: one snapshot a second for {seconds:.0f} s")
    snapshots.command("take")
    start_cpu = cpu_seconds(snapshots.pid)
    begun = time.monotonic()
    readings: list[dict[str, float]] = []
    costs: list[dict[str, Any]] = []
    while True:
        elapsed = time.monotonic() - begun
        readings.append({"at_s": elapsed, "cpu_s": cpu_seconds(snapshots.pid), **memory_mb(snapshots.pid)})
        costs += snapshots.command("take")
        if elapsed >= seconds:
            break
        time.sleep(min(_READING, max(0.01, seconds - elapsed)))
    return {"start_cpu_s": start_cpu, "readings": readings, "snapshots": costs}


def _window(server: Server, load: Cpu, snapshots: Helper, seconds: float) -> Callable[[str], Window]:
    commands = {CONTROL: "pause", SNAPSHOTS: "every 1"}

    def window(arm: str) -> Window:
        snapshots.command(commands[arm])
        seen = pairs.window(server, load, seconds)
        snapshots.command("pause")
        return {**seen, "snapshots": len(snapshots.command("take"))}

    return window


def report(results: dict[str, Any]) -> str:
    """Return two tables: the cost of the process that takes the snapshots, and the effect on the server."""
    own = [_own_row(name, result) for name, result in results.items()]
    lost = [row for name, result in results.items() for row in _pair_rows(name, result)]
    return "\n\n".join(
        [
            "The process that takes the snapshots:",
            table(_OWN, own),
            "The effect on the server:",
            table(_PAIRS, lost),
        ]
    )


_OWN = ("server", "seconds", "snapshots", "threads", "CPU of one core", "start-up CPU s", "snapshot ms",
        "memory MB at the start", "in the middle", "at the end", "peak RSS MB with mapped files")  # fmt: skip
_PAIRS = ("server", *pairs.HEADER)


def _own_row(name: str, result: dict[str, Any]) -> list[str]:
    readings, snapshots = result["own"]["readings"], result["own"]["snapshots"]
    first, last = readings[0], readings[-1]
    seconds = last["at_s"] - first["at_s"]
    settled = next(reading for reading in readings if reading["at_s"] >= _SETTLED * last["at_s"])
    middle = next(reading for reading in readings if reading["at_s"] >= 0.5 * last["at_s"])
    return [
        name, f"{seconds:.0f}", f"{len(snapshots):,}", f"{median(one['threads'] for one in snapshots):,.0f}",
        f"{100 * (last['cpu_s'] - first['cpu_s']) / seconds:.2f} %", f"{result['own']['start_cpu_s']:.2f}",
        f"{median(one['wall_ms'] for one in snapshots):.1f}",
        f"{settled['anon']:.1f}", f"{middle['anon']:.1f}", f"{last['anon']:.1f}", f"{last['rss_peak']:.0f}",
    ]  # fmt: skip


def _pair_rows(name: str, result: dict[str, Any]) -> list[list[str]]:
    trials = [Trial(**trial) for trial in result["trials"]]
    return [[name, *row] for row in pairs.rows(trials, SNAPSHOTS)]
