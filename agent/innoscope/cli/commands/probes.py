"""``innoscope probes``: list the uprobes with the functions that they attach to, and measure their cost."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any, TypeVar

import click

from innoscope.cli.common import json_option, table, target_options, terminal_width
from innoscope.cli.parameters import CommandGroup, Option, completes, seconds_option
from innoscope.cli.probe_measurement import measured, row
from innoscope.common import console
from innoscope.common.errors import NoTarget
from innoscope.daemon.protocol.client import DEFAULT_SOCKET, SensorClient
from innoscope.probes.catalog import default_catalog
from innoscope.probes.report import ProbeReport
from innoscope.probes.symbol_resolution import place
from innoscope.target.discover import find_all, find_one

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from innoscope.probes.catalog import Probe
    from innoscope.probes.symbol_resolution import MissingProbe, Placed, Placement
    from innoscope.target.model import Target

F = TypeVar("F", bound="Callable[..., Any]")

_LIST = ("PROBE", "FAMILY", "STATE", "SYMBOL OR REASON", "REMEDY")
_MEASURED = ("PROBE", "FAMILY", "STATE", "HITS", "HITS/S", "COST", "ATTACHED", "SYMBOL OR REASON", "INSTEAD")
_RIGHT = frozenset({"HITS", "HITS/S", "COST", "ATTACHED"})


def _families() -> Mapping[str, str]:
    return dict.fromkeys(default_catalog().families, "")


def _family_option(function: F) -> F:
    return click.option(
        "--family",
        "families",
        multiple=True,
        metavar="NAME",
        shell_complete=completes(_families),
        help="Only probes of this family (may be repeated).",
    )(function)


@click.group("probes", cls=CommandGroup)
def command() -> None:
    """List the eBPF probes with the functions that they attach to, their state and their cost.

    \b
    Examples:
      innoscope probes list                       list the probes that can be attached to each server
      innoscope probes status                     show what the sensor has attached, with counts and cost
      innoscope probes measure --seconds 10       attach the default probes for 10 s and show their cost
      innoscope probes measure --family spin      attach one family, even if it is off by default
    """


@command.command("list")
@target_options
@_family_option
@json_option
def list_probes(
    pid: int | None, socket: str | None, port: int | None, families: tuple[str, ...], as_json: bool
) -> None:
    """List the probes and the functions that they would attach to.

    If a probe cannot be attached, the reason is shown instead. This command attaches nothing.

    \b
    Examples:
      sudo innoscope probes list                        on every server
      sudo innoscope probes list --pid 4242 --family redo
    """
    found = [(target, place(target, _probes(families))) for target in _targets(pid, socket, port)]
    if as_json:
        console.document([_placement_json(*each) for each in found], indent=2)
        return
    for number, (target, placement) in enumerate(found):
        if number:
            console.line()
        console.line(_title(target, placement.symbols_from))
        if placement.problem:
            console.line(f"note: {placement.problem}")
        console.lines(table(_LIST, list(_list_rows(placement)), width=terminal_width()))


@command.command("measure", short_help="Attach probes for a few seconds and show their cost.")
@target_options
@_family_option
@seconds_option(0.1, 86_400, "How long the probes stay attached, at most 24h.")
@click.option(
    "--budget", type=click.FloatRange(0, 1), default=0.01, show_default=True,
    help="Maximum cost of all probes together, as a share of the CPUs that the server may use.",
)  # fmt: skip
@json_option
def measure(
    pid: int | None,
    socket: str | None,
    port: int | None,
    families: tuple[str, ...],
    seconds: float,
    budget: float,
    as_json: bool,
) -> None:
    """Attach probes to one server for a few seconds, and show the hits and the cost of each probe.

    The probes are detached at the end.

    \b
    Examples:
      sudo innoscope probes measure --seconds 5         attach the probes that are on by default
      sudo innoscope probes measure --family spin       attach one family, even if it is off by default
    """
    target = find_one(pid, socket, port)
    chosen = frozenset(probe.family for probe in _probes(families)) if families else None
    result = measured(target, chosen, seconds=seconds, budget=budget)
    if as_json:
        console.document({"target": asdict(target), **result.document()}, indent=2)
        return
    console.line(_title(target, target.symbols))
    console.lines(table(_MEASURED, list(result.rows()), right=_RIGHT, width=terminal_width()))
    console.lines(("", result.summary()))


@command.command("status")
@click.option(
    "--sensor-socket",
    "path",
    cls=Option,
    formerly=["--socket"],
    type=click.Path(),
    metavar="PATH",
    help=f"The sensor's socket.  [default: {DEFAULT_SOCKET}]",
)
@json_option
def status(path: str | None, as_json: bool) -> None:
    """Show the state, hits and cost of the sensor's probes.

    If a probe is not attached, the reason and a remedy are shown instead.

    \b
    Examples:
      sudo innoscope probes status
      innoscope probes status --sensor-socket /tmp/i/sensor.sock --json

    \b
    Exit codes: 13 no sensor responds. All codes: docs/cli.md.
    """
    servers = SensorClient(path or DEFAULT_SOCKET).probes()
    if as_json:
        console.document(servers, indent=2)
        return
    for number, (name, rows) in enumerate(servers.items()):
        if number:
            console.line()
        console.line(f"server {name}")
        reports = [ProbeReport(**each) for each in rows]
        lines = [row(report) for report in sorted(reports, key=lambda each: -each.hits)]
        console.lines(table(_MEASURED, lines, right=_RIGHT, width=terminal_width()))


def _targets(pid: int | None, socket: str | None, port: int | None) -> Sequence[Target]:
    if pid is not None or socket is not None or port is not None:
        return [find_one(pid, socket, port)]
    found = find_all()
    if not found:
        raise NoTarget("no mysqld or mariadbd is running on this host", remedy="start one")
    return found


def _probes(families: tuple[str, ...]) -> Sequence[Probe]:
    catalog = default_catalog()
    unknown = set(families) - set(catalog.families)
    if unknown:
        raise click.BadParameter(
            f"unknown family {', '.join(sorted(unknown))}; the families are {', '.join(catalog.families)}",
            param_hint="--family",
        )
    return catalog.of(frozenset(families or catalog.families))


def _title(target: Target, symbols: str) -> str:
    return f"{target.flavour} {target.version_text}, pid {target.pid} (symbols: {symbols})"


def _list_rows(placement: Placement) -> Iterator[tuple[str, ...]]:
    for placed in placement.placed:
        symbols = ", ".join(place.symbol for place in placed.places)
        yield (placed.probe.name, placed.probe.family, "possible", symbols, placed.note or "")
    for missing in placement.missing:
        why = missing.reason + (f"; instead: {missing.instead}" if missing.instead else "")
        yield (missing.probe.name, missing.probe.family, "missing", why, missing.remedy or "")


def _placement_json(target: Target, placement: Placement) -> Mapping[str, object]:
    return {
        "target": asdict(target),
        "build_id": placement.build_id,
        "symbols_from": placement.symbols_from,
        "problem": placement.problem,
        "probes": [*map(_placed_json, placement.placed), *map(_missing_json, placement.missing)],
    }


def _placed_json(placed: Placed) -> Mapping[str, object]:
    return {
        "probe": placed.probe.name,
        "family": placed.probe.family,
        "possible": True,
        "symbols": [place.symbol for place in placed.places],
        "at": list(placed.site.at),
        "note": placed.note,
    }


def _missing_json(missing: MissingProbe) -> Mapping[str, object]:
    return {
        "probe": missing.probe.name,
        "family": missing.probe.family,
        "possible": False,
        "reason": missing.reason,
        "remedy": missing.remedy,
        "instead": missing.instead,
    }
