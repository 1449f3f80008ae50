"""Measure how much a profile slows down the server, compared with perf: ``python -m bench profile``.

The arms are: no profiler (the control), ``innoscope profile`` without and with ``--off-cpu``, and ``perf
record --call-graph dwarf`` at the same frequency.
"""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import asdict
from statistics import median
from typing import TYPE_CHECKING, Any

from bench import pairs
from bench.helper_process import Helper
from bench.proc import cpu_seconds
from bench.scene import say
from bench.tables import table
from bench.trials import CONTROL, Trial, Window, alternate
from live.profiling import Perf
from servers import Server
from workloads import Oltp

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from bench.settings import Settings
    from workloads import Workload

PERF = "perf record"
_KINDS = {"profile": "on-cpu", "profile --off-cpu": "off-cpu"}

Record = dict[str, Any]


def run(name: str, settings: Settings) -> Record:
    """Measure one server under sysbench."""
    with ExitStack() as stack:
        server = stack.enter_context(Server(name))
        load = stack.enter_context(Oltp(server, settings.oltp_clients))
        frequency = settings.profile_frequency
        helpers = {
            arm: stack.enter_context(Helper("profile_process", str(server.pid), kind, str(frequency)))
            for arm, kind in _KINDS.items()
        }
        cells: list[Record] = []
        trials = alternate(
            (CONTROL, *helpers, PERF),
            settings.profile_rounds,
            _window(server, load, helpers, settings, cells),
            lambda number: say(f"{name}: pair {number + 1} of {settings.profile_rounds}"),
        )
    return {
        "load": load.describe,
        "frequency": frequency,
        "trials": [asdict(trial) for trial in trials],
        "cells": cells,
    }


def _window(
    server: Server, load: Workload, helpers: Mapping[str, Helper], settings: Settings, cells: list[Record]
) -> Callable[[str], Window]:
    def window(arm: str) -> Window:
        if arm == PERF:
            return _perf(server, load, settings, cells)
        helper = helpers.get(arm)
        if helper is None:
            return pairs.window(server, load, settings.profile_window)
        helper.command("on")
        seen = pairs.window(server, load, settings.profile_window)
        cells.append({"arm": arm, **helper.command("off")})
        return seen

    return window


def _perf(server: Server, load: Workload, settings: Settings, cells: list[Record]) -> Window:
    with Perf(server.pid, settings.profile_frequency) as perf:
        began, ran = time.monotonic(), cpu_seconds(perf.pid)
        seen = pairs.window(server, load, settings.profile_window)
        seconds, ran = time.monotonic() - began, cpu_seconds(perf.pid) - ran
    cells.append({
        "arm": PERF, "seconds": seconds, "cpu_s": ran,
        "records": perf.samples, "bytes": perf.bytes, "lost": 0,
    })  # fmt: skip
    return seen


def report(results: dict[str, Any]) -> str:
    """Return two tables: the effect on the server, and the profilers' own cost."""
    lost, spent = [], []
    for name, result in results.items():
        trials = [Trial(**trial) for trial in result["trials"]]
        for arm in (*_KINDS, PERF):
            lost += [[name, arm, *row] for row in pairs.rows(trials, arm)]
            own = [cell for cell in result["cells"] if cell["arm"] == arm]
            spent.append([name, arm, *_spent(own)])
    return "\n\n".join(
        [
            "The effect on the server.",
            table(("server", "profiler", *pairs.HEADER), lost),
            "The profiler's own cost. perf writes its data to disk; ours stay in memory.",
            table(("server", "profiler", *_SPENT), spent),
        ]
    )


_SPENT = ("CPU of one core", "samples or records/s", "data MB/s", "lost")


def _spent(cells: list[Record]) -> list[str]:
    def rate(key: str) -> float:
        return float(median(cell[key] / cell["seconds"] for cell in cells))

    return [
        f"{rate('cpu_s'):.1%}", f"{rate('records'):,.0f}", f"{rate('bytes') / 1e6:,.2f}",
        str(sum(cell["lost"] for cell in cells)),
    ]  # fmt: skip
