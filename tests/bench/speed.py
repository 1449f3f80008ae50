"""Measure how long a snapshot takes with Innoscope and with other tools: ``python -m bench speed``."""

from __future__ import annotations

import os
import signal
import time
from statistics import median
from typing import TYPE_CHECKING, Any

from bench.command import Run, measured
from bench.helper_process import Helper, HelperError
from bench.proc import memory_mb
from bench.scene import busy, crowded, say
from bench.stats import quantile
from bench.tables import table
from bench.tools import Tool, others, ours
from workloads import LatencyProbe

if TYPE_CHECKING:
    from bench.settings import Settings
    from servers import Server

#: Seconds to pause before each tool.
_REST = 0.3
_NOTHING = 1.0
_DUE = 0.1

Record = dict[str, Any]


def _costs(tool: Tool, run: Run) -> Record:
    return {
        "wall_ms": run.wall_s * 1000,
        "cpu_ms": run.cpu_s * 1000,
        "rss_mb": run.rss_mb,
        "anon_mb": run.anon_mb,
        "threads": tool.threads(run.output),
    }


class _Stage:
    """One server under load, and helpers that measure its stops and reply times."""

    def __init__(self, server: Server, snapshots: Helper, stops: Helper, probe: LatencyProbe) -> None:
        self.pid = server.pid
        self._snapshots = snapshots
        self._stops = stops
        self._probe = probe
        self.records: list[Record] = []

    def nothing(self) -> None:
        """Measure the control, which is one second without a tool."""
        self._begin()
        time.sleep(_NOTHING)
        self._end("nothing", {})

    def warm(self, count: int) -> None:
        """Measure snapshots by a process that has already taken one, so that its caches are filled."""
        for _ in range(count):
            self._begin()
            self._snapshots.command("snapshots 1")
            cost = self._snapshots.command("take")[-1]
            memory = memory_mb(self._snapshots.pid)
            self._end("innoscope, warm", cost | {"rss_mb": memory["rss_peak"], "anon_mb": memory["anon"]})

    def run(self, tool: Tool) -> None:
        """Measure one run of a command. If gdb is killed, resume the server that it left stopped."""
        self._begin()
        try:
            run = measured(tool.on(self.pid), tool.environment)
        except BaseException:
            os.kill(self.pid, signal.SIGCONT)
            raise
        self._end(tool.name, _costs(tool, run))

    def _begin(self) -> None:
        time.sleep(_REST)
        self._stops.command("take")
        self._probe.take()

    def _end(self, tool: str, record: Record) -> None:
        time.sleep(_DUE)
        gaps = self._probe.take()
        stopped = self._stops.command("take")
        self.records.append(
            {"tool": tool, **record, "stopped_ms": stopped, "longest_gap_ms": gaps.longest_us / 1000}
        )


def run(name: str, settings: Settings) -> dict[str, Any]:
    """Measure one server: Innoscope without a load, then all tools under load."""
    tools = others()
    with (
        crowded(name, settings.connections, mixed=True) as server,
        Helper("snapshot_process", str(server.pid), "auto") as snapshots,
        Helper("stop_process", str(server.pid)) as stops,
    ):
        snapshots.command("pause")
        quiet = _quiet(server, snapshots, settings)
        with busy(server, settings.load), LatencyProbe(server, realtime=True) as probe:
            stage = _Stage(server, snapshots, stops, probe)
            _rounds(stage, name, settings, tools)
    return {"quiet": quiet, "load": stage.records, "clients": settings.load}


def _quiet(server: Server, snapshots: Helper, settings: Settings) -> list[Record]:
    """Measure Innoscope on a server without load."""
    say(f"{server.name}: innoscope without a load")
    snapshots.command("take")
    snapshots.command(f"snapshots {settings.rounds * settings.snapshots}")
    memory = memory_mb(snapshots.pid)
    records = [
        cost | {"tool": "innoscope, warm", "rss_mb": memory["rss_peak"], "anon_mb": memory["anon"]}
        for cost in snapshots.command("take")
    ]
    tool = ours()
    for _ in range(settings.rounds):
        run = measured(tool.on(server.pid), tool.environment)
        records.append({"tool": tool.name, **_costs(tool, run)})
    return records


def _rounds(stage: _Stage, name: str, settings: Settings, tools: list[Tool]) -> None:
    """Run Innoscope in every round, and the other, slower tools in some rounds."""
    step = max(1, settings.rounds // settings.other_rounds)
    for number in range(settings.rounds):
        with_others = number % step == 0 and number // step < settings.other_rounds
        say(f"{name}: round {number + 1} of {settings.rounds}{', all tools' if with_others else ''}")
        stage.nothing()
        stage.warm(settings.snapshots)
        stage.run(ours())
        for tool in tools if with_others else ():
            try:
                stage.run(tool)
            except HelperError as error:
                say(f"skipped: {error}")


def report(results: dict[str, Any]) -> str:
    """Return two tables: Innoscope step by step, and all tools."""
    own = [
        _own_row(name, state, records)
        for name, result in results.items()
        for state, records in (("quiet", result["quiet"]), (f"{result['clients']} clients", result["load"]))
    ]
    beside = [row for name, result in results.items() for row in _beside(name, result["load"])]
    return "\n\n".join(
        [
            "Innoscope, step by step: p50 (p95).",
            table(_OWN, own),
            "All tools under load: medians. × is the wall time as a multiple of `innoscope stacks`.",
            table(_BESIDE, beside),
        ]
    )


_OWN = ("server", "load", "threads", "copy ms", "copy + unwind + symbolize ms", "whole snapshot ms",
        "CLI wall s", "CLI CPU s", "CLI RSS MB", "CLI RSS MB without mapped files")  # fmt: skip
_BESIDE = ("server", "tool", "runs", "threads", "wall s", "×", "CPU s", "RSS MB", "main thread stopped ms",
           "longest client gap ms")  # fmt: skip


def _own_row(name: str, state: str, records: list[Record]) -> list[str]:
    warm = [record for record in records if record["tool"] == "innoscope, warm"]
    cold = [record for record in records if record["tool"] == "innoscope stacks"]
    copy = [record["copy_ms"] for record in warm]
    parts = [record["copy_ms"] + record["unwind_ms"] + record["symbolize_ms"] for record in warm]
    whole = [record["wall_ms"] for record in warm]
    return [
        name, state, f"{median(record['threads'] for record in warm):,.0f}",
        _both(copy, "{:.1f}"), _both(parts, "{:.1f}"), _both(whole, "{:.1f}"),
        _both([record["wall_ms"] / 1000 for record in cold], "{:.2f}"),
        f"{median(record['cpu_ms'] for record in cold) / 1000:.2f}",
        f"{max(record['rss_mb'] for record in cold):.0f}", f"{max(record['anon_mb'] for record in cold):.0f}",
    ]  # fmt: skip


def _both(values: list[float], form: str) -> str:
    return f"{form.format(median(values))} ({form.format(quantile(values, 0.95))})"


def _beside(name: str, records: list[Record]) -> list[list[str]]:
    by_tool: dict[str, list[Record]] = {}
    for record in records:
        by_tool.setdefault(record["tool"], []).append(record)
    cli = by_tool.get("innoscope stacks", [])
    base = median(record["wall_ms"] for record in cli) if cli else None
    return [_beside_row(name, tool, of_tool, base) for tool, of_tool in by_tool.items()]


def _beside_row(name: str, tool: str, records: list[Record], base: float | None) -> list[str]:
    def middle(key: str, form: str, scale: float = 1) -> str:
        values = [record[key] * scale for record in records if key in record]
        return form.format(median(values)) if values else "–"

    wall = middle("wall_ms", "{}")
    times = f"{float(wall) / base:.2g}" if base and wall != "–" else "–"
    return [
        name, tool, str(len(records)), middle("threads", "{:,.0f}"), middle("wall_ms", "{:.3f}", 1e-3), times,
        middle("cpu_ms", "{:.3f}", 1e-3), middle("rss_mb", "{:.0f}"), middle("stopped_ms", "{:.0f}"),
        middle("longest_gap_ms", "{:.1f}"),
    ]  # fmt: skip
