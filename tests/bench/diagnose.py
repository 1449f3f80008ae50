"""Measure how much ``innoscope diagnose`` slows down the server: ``python -m bench diagnose``.

There are two arms of equal duration: no command (the control), and one complete run of the command. The
windows without a command before and after each arm are shorter. Under these loads, the speed of a shared
machine varies by 5 % between windows of 10 s, so many short windows give a more precise result than a few
long ones of the same total duration. ``bench probes`` uses the same loads.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import asdict
from statistics import median
from typing import TYPE_CHECKING, Any

from bench import pairs
from bench.helper_process import Helper
from bench.scene import probe_load, say
from bench.tables import table
from bench.trials import CONTROL, Trial, Window, alternate
from servers import Server

if TYPE_CHECKING:
    from collections.abc import Callable

    from bench.settings import Settings
    from workloads import Workload

ARM = "diagnose"

Record = dict[str, Any]


def run(name: str, settings: Settings) -> Record:
    """Measure one server under each load."""
    return {
        "seconds": settings.diagnose_seconds,
        "loads": {load: _loaded(name, load, settings) for load in settings.probe_loads},
    }


def _loaded(name: str, load_name: str, settings: Settings) -> Record:
    with ExitStack() as stack:
        server = stack.enter_context(Server(name))
        load = stack.enter_context(probe_load(server, load_name, settings))
        arguments = (str(server.pid), str(settings.diagnose_seconds))
        helper = stack.enter_context(Helper("diagnose_process", *arguments))
        say(f"{name}: {load.describe}; one run before, so that the caches are filled")
        cells: list[Record] = [helper.command("run")]
        trials = alternate(
            (CONTROL, ARM),
            settings.pair_rounds,
            _window(server, load, helper, cells),
            lambda number: say(f"{name}, {load_name}: pair {number + 1} of {settings.pair_rounds}"),
            around=lambda: pairs.window(server, load, settings.diagnose_around),
        )
    return {"load": load.describe, "trials": [asdict(trial) for trial in trials], "cells": cells[1:]}


def _window(server: Server, load: Workload, helper: Helper, cells: list[Record]) -> Callable[[str], Window]:
    def window(arm: str) -> Window:
        if arm == CONTROL:
            return pairs.window(server, load, cells[-1]["seconds"])
        return pairs.during(server, load, lambda: cells.append(helper.command("run")))

    return window


def report(results: dict[str, Any]) -> str:
    """Return two tables: the effect on the server, and the command's own cost."""
    lost, spent = [], []
    for name, result in results.items():
        for load in result["loads"].values():
            trials = [Trial(**trial) for trial in load["trials"]]
            lost += [[name, load["load"], *row] for row in pairs.rows(trials, ARM)]
            spent.append([name, load["load"], *_spent(load["cells"])])
    return "\n\n".join(
        [
            "The effect on the server.",
            table(("server", "load", *pairs.HEADER), lost),
            "The command's own cost.",
            table(("server", "load", *_SPENT), spent),
        ]
    )


_SPENT = ("runs", "snapshots", "seconds, median", "CPU seconds, median", "found", "missing sources")


def _spent(cells: list[Record]) -> list[str]:
    return [
        str(len(cells)), str(sum(cell["snapshots"] for cell in cells)),
        f"{median(cell['seconds'] for cell in cells):.1f}", f"{median(cell['cpu_s'] for cell in cells):.2f}",
        _all(cells, "found"), _all(cells, "missing"),
    ]  # fmt: skip


def _all(cells: list[Record], key: str) -> str:
    return ", ".join(sorted({name for cell in cells for name in cell[key]})) or "–"
