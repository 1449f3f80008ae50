"""Measure the cost of the active session history: ``python -m bench sessions``.

A tenth of the connections wait for a row lock, and the others are idle. The sensor takes one snapshot per
second. The agent runs first without the history and then with it, on the same sensor.
"""

from __future__ import annotations

import time
from statistics import median
from typing import TYPE_CHECKING, Any

from bench.proc import cpu_seconds, memory_mb
from bench.scene import say
from bench.tables import table
from innoscope.sampling.sessions import files
from safety.agenting import Running
from safety.sensing import Sensing
from servers import Server
from workloads import Idle, RowLock

if TYPE_CHECKING:
    from pathlib import Path

    from bench.settings import Settings

Record = dict[str, Any]

#: Seconds between two samples of memory.
_STEP_S = 1.0


def run(name: str, settings: Settings) -> Record:
    """Measure the sensor, and the agent with and without the history."""
    busy = settings.connections // 10
    found: Record = {"busy": busy}
    with (
        Server(name) as server,
        Idle(server, settings.connections - busy),
        RowLock(server, busy),
        Sensing("--no-probes", only=[server]) as sensing,
    ):
        for label, history in (("without", False), ("with", True)):
            with Running(server, sensor=sensing.path, history=history) as agent:
                say(f"{name}: {label} the history, {settings.agent_seconds:g} s")
                found[label] = _measured({"sensor": sensing.pid, "agent": agent.pid}, settings.agent_seconds)
                agent.terminate()
                found[label]["bytes"] = _bytes(agent.history)
    return found


def _measured(pids: dict[str, int], seconds: float) -> Record:
    time.sleep(_STEP_S * 10)  # the first fetch contains the sensor's whole buffer
    began = time.monotonic()
    before = {who: cpu_seconds(pid) for who, pid in pids.items()}
    memory: dict[str, list[float]] = {who: [] for who in pids}
    while time.monotonic() - began < seconds:
        time.sleep(_STEP_S)
        for who, pid in pids.items():
            memory[who].append(memory_mb(pid)["rss"])
    took = time.monotonic() - began
    return {
        who: {"cpu": (cpu_seconds(pid) - before[who]) / took, "rss_mb": median(memory[who])}
        for who, pid in pids.items()
    }


def _bytes(history: Path) -> int:
    return sum(part.bytes for part in files.live_parts(history)) if history.exists() else 0


def report(results: dict[str, Any]) -> str:
    """Return a table with one row for each process, with and without the history."""
    return table(
        ("server", "busy threads", "history", "process", "CPU of one core", "RSS MB, median", "KB written"),
        [
            [
                name, str(result["busy"]), label, who, f"{result[label][who]['cpu']:.2%}",
                f"{result[label][who]['rss_mb']:.1f}", f"{result[label]['bytes'] / 1e3:,.0f}",
            ]
            for name, result in results.items()
            for label in ("without", "with")
            for who in ("sensor", "agent")
        ],
    )  # fmt: skip
