"""What ``innoscope diagnose`` costs the server while it runs: ``python -m bench diagnose``.

The arms: nothing (control), and the command as a person types it, from its start to its end: loading the
probes, looking, taking them off. The control lasts as long. The empty windows around both are shorter: under
this load two cores of a shared machine wander by 5 % between windows of 10 s, however long the others are, so
more and shorter ones tell more in the same time. Both loads of the probes' benchmark.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import asdict
from statistics import median
from typing import TYPE_CHECKING, Any

from bench import pairs
from bench.alternating import CONTROL, Trial, Window, alternate
from bench.children import Child
from bench.scene import say
from bench.tables import table
from servers import Server
from workloads import Oltp, UpdateStorm

if TYPE_CHECKING:
    from collections.abc import Callable

    from bench.settings import Settings
    from workloads import Workload

ARM = "diagnose"

Record = dict[str, Any]


def run(name: str, settings: Settings) -> Record:
    """One server: each load in turn."""
    return {
        "look_s": settings.diagnose_seconds,
        "loads": {load: _loaded(name, load, settings) for load in settings.probe_loads},
    }


def _loaded(name: str, load_name: str, settings: Settings) -> Record:
    with ExitStack() as stack:
        server = stack.enter_context(Server(name))
        load: Workload = stack.enter_context(
            Oltp(server, settings.oltp_clients)
            if load_name == "oltp"
            else UpdateStorm(server, settings.storm_clients)
        )
        child = stack.enter_context(Child("diagnoser", str(server.pid), str(settings.diagnose_seconds)))
        say(f"{name}: {load.describe}; once before, so that offsets are known")
        cells: list[Record] = [child.ask("run")]
        trials = alternate(
            (CONTROL, ARM),
            settings.pair_rounds,
            _window(server, load, child, cells),
            lambda number: say(f"{name}, {load_name}: pair {number + 1} of {settings.pair_rounds}"),
            around=lambda: pairs.window(server, load, settings.diagnose_around),
        )
    return {"load": load.describe, "trials": [asdict(trial) for trial in trials], "cells": cells[1:]}


def _window(server: Server, load: Workload, child: Child, cells: list[Record]) -> Callable[[str], Window]:
    def window(arm: str) -> Window:
        if arm == CONTROL:
            return pairs.window(server, load, cells[-1]["seconds"])
        return pairs.during(server, load, lambda: cells.append(child.ask("run")))

    return window


def report(results: dict[str, Any]) -> str:
    """What the server loses, and what the command uses itself."""
    lost, spent = [], []
    for name, result in results.items():
        for load in result["loads"].values():
            trials = [Trial(**trial) for trial in load["trials"]]
            lost += [[name, load["load"], *row] for row in pairs.rows(trials, ARM)]
            spent.append([name, load["load"], *_spent(load["cells"])])
    return "\n\n".join(
        [
            "What the server loses.",
            table(("server", "load", *pairs.HEADER), lost),
            "What the command uses itself.",
            table(("server", "load", *_SPENT), spent),
        ]
    )


_SPENT = ("runs", "looks", "seconds, median", "CPU seconds, median", "found", "could not be told for want of")


def _spent(cells: list[Record]) -> list[str]:
    return [
        str(len(cells)), str(sum(cell["looks"] for cell in cells)),
        f"{median(cell['seconds'] for cell in cells):.1f}", f"{median(cell['cpu_s'] for cell in cells):.2f}",
        _all(cells, "found"), _all(cells, "untold"),
    ]  # fmt: skip


def _all(cells: list[Record], key: str) -> str:
    return ", ".join(sorted({name for cell in cells for name in cell[key]})) or "–"
