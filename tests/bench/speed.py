"""How long a dump takes, ours and the other tools', in one run: ``python -m bench speed``."""

from __future__ import annotations

import os
import signal
import time
from statistics import median
from typing import TYPE_CHECKING, Any

from bench.children import Child, ChildError
from bench.command import measured
from bench.proc import memory_mb
from bench.scene import busy, crowded, say
from bench.stats import quantile
from bench.tables import table
from bench.tools import Tool, others, ours
from workloads import LatencyProbe

if TYPE_CHECKING:
    from bench.settings import Settings
    from servers import Server

#: Seconds between two tools, of the row without any, and for an answer that is still due when a tool ends.
_REST = 0.3
_NOTHING = 1.0
_DUE = 0.1

Record = dict[str, Any]


class _Stage:
    """One server under load, its main thread watched and its answers timed."""

    def __init__(self, server: Server, looker: Child, watcher: Child, probe: LatencyProbe) -> None:
        self.pid = server.pid
        self._looker = looker
        self._watcher = watcher
        self._probe = probe
        self.records: list[Record] = []

    def nothing(self) -> None:
        """The control: a while without any tool."""
        self._begin()
        time.sleep(_NOTHING)
        self._end("nothing", {})

    def warm(self, looks: int) -> None:
        """Looks of a process that has looked before, one by one."""
        for _ in range(looks):
            self._begin()
            self._looker.ask("look 1")
            cost = self._looker.ask("take")[-1]
            memory = memory_mb(self._looker.pid)
            self._end("innoscope, warm", cost | {"rss_mb": memory["rss_peak"], "anon_mb": memory["anon"]})

    def run(self, tool: Tool) -> None:
        """One run of a command. gdb ended in the middle leaves the server stopped: then it is woken."""
        self._begin()
        try:
            run = measured(tool.on(self.pid), tool.environment)
        except BaseException:
            os.kill(self.pid, signal.SIGCONT)
            raise
        self._end(
            tool.name,
            {
                "wall_ms": run.wall_s * 1000,
                "cpu_ms": run.cpu_s * 1000,
                "rss_mb": run.rss_mb,
                "anon_mb": run.anon_mb,
                "threads": tool.threads(run.output),
            },
        )

    def _begin(self) -> None:
        time.sleep(_REST)
        self._watcher.ask("take")
        self._probe.take()

    def _end(self, tool: str, record: Record) -> None:
        time.sleep(_DUE)
        gaps = self._probe.take()
        stopped = self._watcher.ask("take")
        self.records.append(
            {"tool": tool, **record, "stopped_ms": stopped, "longest_gap_ms": gaps.longest_us / 1000}
        )


def run(name: str, settings: Settings) -> dict[str, Any]:
    """One server: first without a load, ours only, then all tools under it."""
    tools = others()
    with (
        crowded(name, settings.connections, mixed=True) as server,
        Child("looker", str(server.pid)) as looker,
        Child("watcher", str(server.pid)) as watcher,
    ):
        looker.ask("pause")
        quiet = _quiet(server, looker, settings)
        with busy(server, settings.load), LatencyProbe(server, realtime=True) as probe:
            stage = _Stage(server, looker, watcher, probe)
            _rounds(stage, name, settings, tools)
    return {"quiet": quiet, "load": stage.records, "clients": settings.load}


def _quiet(server: Server, looker: Child, settings: Settings) -> list[Record]:
    """Ours on a server that has nothing to do: what the dump itself takes."""
    say(f"{server.name}: ours without a load")
    looker.ask("take")
    looker.ask(f"look {settings.rounds * settings.looks}")
    memory = memory_mb(looker.pid)
    records = [
        cost | {"tool": "innoscope, warm", "rss_mb": memory["rss_peak"], "anon_mb": memory["anon"]}
        for cost in looker.ask("take")
    ]
    tool = ours()
    for _ in range(settings.rounds):
        run = measured(tool.on(server.pid), tool.environment)
        records.append(
            {
                "tool": tool.name,
                "wall_ms": run.wall_s * 1000,
                "cpu_ms": run.cpu_s * 1000,
                "rss_mb": run.rss_mb,
                "anon_mb": run.anon_mb,
                "threads": tool.threads(run.output),
            }
        )
    return records


def _rounds(stage: _Stage, name: str, settings: Settings, tools: list[Tool]) -> None:
    """Ours in every round, the slow ones in some, spread over the run."""
    step = max(1, settings.rounds // settings.other_rounds)
    for number in range(settings.rounds):
        with_others = number % step == 0 and number // step < settings.other_rounds
        say(f"{name}: round {number + 1} of {settings.rounds}{', all tools' if with_others else ''}")
        stage.nothing()
        stage.warm(settings.looks)
        stage.run(ours())
        for tool in tools if with_others else ():
            try:
                stage.run(tool)
            except ChildError as error:
                say(f"left out: {error}")


def report(results: dict[str, Any]) -> str:
    """Two tables: ours in its parts, and ours beside the others."""
    own = [
        _own_row(name, state, records)
        for name, result in results.items()
        for state, records in (("quiet", result["quiet"]), (f"{result['clients']} clients", result["load"]))
    ]
    beside = [row for name, result in results.items() for row in _beside(name, result["load"])]
    return "\n\n".join(
        [
            "Ours, in its parts: median (95th percentile).",
            table(_OWN, own),
            "All tools under the load: medians; × is the wall time as a multiple of `innoscope stacks`.",
            table(_BESIDE, beside),
        ]
    )


_OWN = ("server", "load", "threads", "copy ms", "copy + unwind + symbolise ms", "whole look ms", "CLI wall s",
        "CLI CPU s", "CLI RSS MB", "CLI RSS MB, mapped files apart")  # fmt: skip
_BESIDE = ("server", "tool", "runs", "threads", "wall s", "×", "CPU s", "RSS MB", "main thread stopped ms",
           "longest client gap ms")  # fmt: skip


def _own_row(name: str, state: str, records: list[Record]) -> list[str]:
    warm = [record for record in records if record["tool"] == "innoscope, warm"]
    cold = [record for record in records if record["tool"] == "innoscope stacks"]
    copy = [record["copy_ms"] for record in warm]
    parts = [record["copy_ms"] + record["unwind_ms"] + record["symbolise_ms"] for record in warm]
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
