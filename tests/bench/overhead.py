"""What looking once a second costs, us and the server: ``python -m bench overhead``."""

from __future__ import annotations

import time
from dataclasses import asdict
from statistics import median
from typing import TYPE_CHECKING, Any

from bench import pairs
from bench.alternating import CONTROL, Trial, Window, alternate
from bench.children import Child
from bench.proc import cpu_seconds, memory_mb
from bench.scene import busy, crowded, say
from bench.tables import table

if TYPE_CHECKING:
    from collections.abc import Callable

    from bench.settings import Settings
    from servers import Server
    from workloads import Cpu

LOOKS = "looks"

#: Seconds between two readings of the looker's own memory and CPU time.
_READING = 5.0

#: Of the long run: what comes before is start-up.
_SETTLED = 0.1


def run(name: str, settings: Settings) -> dict[str, Any]:
    """One server: the long run, then the pairs."""
    with (
        crowded(name, settings.connections, mixed=False) as server,
        busy(server, max(1, settings.load)) as load,
        Child("looker", str(server.pid)) as looker,
    ):
        assert load is not None
        looker.ask("every 1")  # from here on once a second
        own = _long_run(name, looker, settings.seconds)
        looker.ask("pause")
        trials = alternate(
            (CONTROL, LOOKS),
            settings.pair_rounds,
            _window(server, load, looker, settings.pair_window),
            lambda number: say(f"{name}: pair {number + 1} of {settings.pair_rounds}"),
        )
    return {
        "clients": max(1, settings.load),
        "own": own,
        "window_s": settings.pair_window,
        "trials": [asdict(trial) for trial in trials],
    }


def _long_run(name: str, looker: Child, seconds: float) -> dict[str, Any]:
    """One look a second for so long. The first reading comes after the start, which is told apart."""
    say(f"{name}: one look a second for {seconds:.0f} s")
    looker.ask("take")
    start_cpu = cpu_seconds(looker.pid)
    begun = time.monotonic()
    readings: list[dict[str, float]] = []
    costs: list[dict[str, Any]] = []
    while True:
        elapsed = time.monotonic() - begun
        readings.append({"at_s": elapsed, "cpu_s": cpu_seconds(looker.pid), **memory_mb(looker.pid)})
        costs += looker.ask("take")
        if elapsed >= seconds:
            break
        time.sleep(min(_READING, max(0.01, seconds - elapsed)))
    return {"start_cpu_s": start_cpu, "readings": readings, "looks": costs}


def _window(server: Server, load: Cpu, looker: Child, seconds: float) -> Callable[[str], Window]:
    orders = {CONTROL: "pause", LOOKS: "every 1"}

    def window(arm: str) -> Window:
        looker.ask(orders[arm])
        seen = pairs.window(server, load, seconds)
        looker.ask("pause")
        return {**seen, "looks": len(looker.ask("take"))}

    return window


def report(results: dict[str, Any]) -> str:
    """The looker's own cost, and the server's."""
    own = [_own_row(name, result) for name, result in results.items()]
    lost = [row for name, result in results.items() for row in _pair_rows(name, result)]
    return "\n\n".join(
        [
            "Looking once a second: the looker itself.",
            table(_OWN, own),
            "What the server loses by it.",
            table(_PAIRS, lost),
        ]
    )


_OWN = ("server", "seconds", "looks", "threads", "CPU of one core", "start-up CPU s", "look ms",
        "memory MB at the start", "in the middle", "at the end", "peak RSS MB with mapped files")  # fmt: skip
_PAIRS = ("server", *pairs.HEADER)


def _own_row(name: str, result: dict[str, Any]) -> list[str]:
    readings, looks = result["own"]["readings"], result["own"]["looks"]
    first, last = readings[0], readings[-1]
    seconds = last["at_s"] - first["at_s"]
    settled = next(reading for reading in readings if reading["at_s"] >= _SETTLED * last["at_s"])
    middle = next(reading for reading in readings if reading["at_s"] >= 0.5 * last["at_s"])
    return [
        name, f"{seconds:.0f}", f"{len(looks):,}", f"{median(look['threads'] for look in looks):,.0f}",
        f"{100 * (last['cpu_s'] - first['cpu_s']) / seconds:.2f} %", f"{result['own']['start_cpu_s']:.2f}",
        f"{median(look['wall_ms'] for look in looks):.1f}",
        f"{settled['anon']:.1f}", f"{middle['anon']:.1f}", f"{last['anon']:.1f}", f"{last['rss_peak']:.0f}",
    ]  # fmt: skip


def _pair_rows(name: str, result: dict[str, Any]) -> list[list[str]]:
    trials = [Trial(**trial) for trial in result["trials"]]
    return [[name, *row] for row in pairs.rows(trials, LOOKS)]
