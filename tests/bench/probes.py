"""Measure how much the probes slow down the server within their budget: ``python -m bench probes``.

The arms are: no probes (the control); the families that are on by default; with ``--spin`` also the default
families plus the most expensive family; with ``--unbounded`` also the default families without a budget. With
``--family``, the arms are the control and each given family alone. The probes are compiled before the first
window, and are attached only in the windows of their arm.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import asdict
from statistics import fmean, median
from typing import TYPE_CHECKING, Any

from bench import pairs
from bench.helper_process import Helper
from bench.scene import probe_load, say
from bench.tables import table
from bench.trials import CONTROL, Trial, Window, alternate
from innoscope.probes.catalog import default_catalog
from innoscope.probes.governor import DEFAULT_BUDGET
from servers import Server

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from bench.settings import Settings
    from workloads import Workload

DEFAULTS = "defaults"
SPIN = "defaults and spin"
UNBOUNDED = "defaults, no budget"

Record = dict[str, Any]


def run(name: str, settings: Settings) -> Record:
    """Measure one server under each load."""
    return {
        "window_s": settings.cell,
        "loads": {load: _loaded(name, load, settings) for load in settings.probe_loads},
    }


def _loaded(name: str, load_name: str, settings: Settings) -> Record:
    with ExitStack() as stack:
        server = stack.enter_context(Server(name))
        load = stack.enter_context(probe_load(server, load_name, settings))
        say(f"{name}: {load.describe}; compiling the probes")
        probers = {
            arm: stack.enter_context(Helper("probe_process", str(server.pid), *arguments))
            for arm, arguments in _arms(settings).items()
        }
        for arm in _placeless(probers):
            say(f"{name}: {arm}: no place here")
            del probers[arm]
        for probes_of in probers.values():
            probes_of.command("settle")
        cells: list[Record] = []
        trials = alternate(
            (CONTROL, *probers),
            settings.pair_rounds,
            _window(server, load, probers, settings.cell, cells),
            lambda number: say(f"{name}, {load_name}: pair {number + 1} of {settings.pair_rounds}"),
        )
    return {"load": load.describe, "trials": [asdict(trial) for trial in trials], "cells": cells}


def _arms(settings: Settings) -> dict[str, list[str]]:
    """Return the probes' budget and families for each arm, by the arm's name."""
    budget = str(DEFAULT_BUDGET)
    if settings.families:
        return {family: [budget, family] for family in settings.families}
    families = [name for name, family in default_catalog().families.items() if family.default]
    arms = {DEFAULTS: [budget, *families]}
    if settings.spin:
        arms[SPIN] = [budget, *families, "spin"]
    if settings.unbounded:
        arms[UNBOUNDED] = ["1", *families]
    return arms


def _placeless(probers: Mapping[str, Helper]) -> list[str]:
    """Return the arms to skip: those without probes, and ``spin`` if it has only the default probes."""
    points = {arm: probes_of.command("points") for arm, probes_of in probers.items()}
    return [arm for arm, own in points.items() if not own or (arm == SPIN and own == points[DEFAULTS])]


def _window(
    server: Server, load: Workload, probers: Mapping[str, Helper], seconds: float, cells: list[Record]
) -> Callable[[str], Window]:
    def window(arm: str) -> Window:
        probes_of = probers.get(arm)
        if probes_of is None:
            return pairs.window(server, load, seconds)
        probes_of.command("on")
        probes_of.command("begin")
        seen = pairs.window(server, load, seconds)
        cells.append({"arm": arm, "per_second": seen["per_second"], **probes_of.command("end")})
        probes_of.command("off")
        return seen

    return window


def report(results: dict[str, Any]) -> str:
    """Return two tables: the effect on the server, and the cost estimated by the governor."""
    lost, spent = [], []
    for name, result in results.items():
        for load in result["loads"].values():
            trials = [Trial(**trial) for trial in load["trials"]]
            for arm in dict.fromkeys(cell["arm"] for cell in load["cells"]):
                lost += [[name, load["load"], arm, *row] for row in pairs.rows(trials, arm)]
                own = [cell for cell in load["cells"] if cell["arm"] == arm]
                spent.append([name, load["load"], arm, *_spent(own)])
    return "\n\n".join(
        [
            "The effect on the server.",
            table(("server", "load", "probes", *pairs.HEADER), lost),
            "The estimated cost of the probes while attached, as a share of the server's CPUs.",
            table(("server", "load", "probes", *_SPENT), spent),
        ]
    )


_SPENT = ("windows", "hits/s, median", "most", "cost, mean", "median", "most", "µs/operation, median",
          "always attached", "on a duty cycle (share of the windows; median duty)")  # fmt: skip


def _spent(cells: list[Record]) -> list[str]:
    hits = [cell["hits_per_second"] for cell in cells]
    spent = [cell["spent"] for cell in cells]
    return [
        str(len(cells)), f"{median(hits):,.0f}", f"{max(hits):,.0f}",
        f"{fmean(spent):.2%}", f"{median(spent):.2%}", f"{max(spent):.2%}",
        f"{median(cell['cost_per_second'] / cell['per_second'] for cell in cells) * 1e6:.1f}",
        f"{median(cell['attached'] for cell in cells):.0f}", _cycled(cells),
    ]  # fmt: skip


def _cycled(cells: list[Record]) -> str:
    duties: dict[str, list[float]] = {}
    for cell in cells:
        for probe, duty in cell["cycled"].items():
            duties.setdefault(probe, []).append(duty)
    ordered = sorted(duties.items(), key=lambda item: -len(item[1]))
    shares = (f"{probe} ({len(own) / len(cells):.0%}; {median(own):.1%})" for probe, own in ordered)
    return ", ".join(shares) or "–"
