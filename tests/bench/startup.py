"""Measure the startup cost of commands and daemons, and check it against limits: ``python -m bench startup``.

The server has a thousand connections. ``stacks`` takes one snapshot, ``top`` runs on a terminal for 0.1 s,
``diagnose`` collects evidence for one second without probes, and the daemons are measured when they report
that they are ready. The CPU time of a command includes its child processes.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Final

from bench.command import measured
from bench.proc import cpu_seconds, memory_mb
from bench.scene import crowded, say
from bench.tables import table
from safety.agenting import Running
from safety.sensing import Sensing

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bench.settings import Settings
    from servers import Server

_INNOSCOPE: Final = str(Path(sys.executable).with_name("innoscope"))
_ENVIRONMENT: Final = {"DEBUGINFOD_URLS": "", "LC_ALL": "C.UTF-8", "TERM": "xterm-256color"}

Record = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Limit:
    """The maximum CPU time and resident size (with mapped files) of one start."""

    cpu_s: float
    rss_mb: float


LIMITS: Final = {
    "stacks": Limit(0.25, 45),
    "diagnose": Limit(0.5, 70),
    "top": Limit(0.5, 70),
    "sensor": Limit(0.5, 50),
    "agent": Limit(0.5, 55),
}


def run(name: str, settings: Settings) -> Record:
    """Start every command once per round. The first round fills the caches and is not counted."""
    runs: dict[str, list[Record]] = {command: [] for command in LIMITS}
    with crowded(name, settings.connections, mixed=True) as server:
        for number in range(settings.startup_rounds + 1):
            say(f"{name}: round {number} of {settings.startup_rounds}")
            for command, cost in _round(server):
                if number:
                    runs[command].append(cost)
    return runs


def _round(server: Server) -> Iterator[tuple[str, Record]]:
    target = ("--pid", str(server.pid))
    yield "stacks", _command(_INNOSCOPE, "stacks", *target)
    yield "diagnose", _command(_INNOSCOPE, "diagnose", *target, "--seconds", "1", "--no-probes")
    top = f"{_INNOSCOPE} top --pid {server.pid} --seconds 0.1"
    yield "top", _command("script", "--quiet", "--return", "--command", top, "/dev/null")
    with Sensing("--no-probes", only=[server]) as sensing:
        yield "sensor", _daemon(sensing.pid)
        with Running(server, sensor=sensing.path) as agent:
            yield "agent", _daemon(agent.pid)


def _command(*words: str) -> Record:
    cost = measured(words, _ENVIRONMENT)
    return {"cpu_s": cost.cpu_s, "wall_s": cost.wall_s, "rss_mb": cost.rss_mb}


def _daemon(pid: int) -> Record:
    return {"cpu_s": cpu_seconds(pid), "rss_mb": memory_mb(pid)["rss_peak"]}


def report(results: dict[str, Any]) -> str:
    """Return a table with one row per command: medians and limits."""
    return table(_HEADER, [_row(name, *one) for name, runs in results.items() for one in runs.items()])


_HEADER = ("server", "command", "starts", "CPU s, median", "limit", "RSS MB, median", "limit")


def _row(name: str, command: str, runs: list[Record]) -> list[str]:
    cost, limit = _median(runs), LIMITS[command]
    return [
        name, command, str(len(runs)), f"{cost.cpu_s:.2f}", f"{limit.cpu_s:.2f}",
        f"{cost.rss_mb:.0f}", f"{limit.rss_mb:.0f}",
    ]  # fmt: skip


def _median(runs: list[Record]) -> Limit:
    return Limit(median(one["cpu_s"] for one in runs), median(one["rss_mb"] for one in runs))


def exceeded(results: dict[str, Any]) -> list[str]:
    """Return a message for each limit that the median of the starts exceeds."""
    found = []
    for name, runs in results.items():
        for command, records in runs.items():
            cost, limit = _median(records), LIMITS[command]
            if cost.cpu_s > limit.cpu_s:
                found.append(f"{name}: {command} took {cost.cpu_s:.2f} s of CPU, limit {limit.cpu_s:.2f} s")
            if cost.rss_mb > limit.rss_mb:
                found.append(f"{name}: {command} took {cost.rss_mb:.0f} MB, limit {limit.rss_mb:.0f} MB")
    return found
