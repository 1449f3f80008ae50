"""``innoscope watch``: wait for a stall and write an incident file."""

from __future__ import annotations

import contextlib
import math
import re
import signal
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import click

from innoscope.cli.common import (
    json_option,
    source_options,
    sql_options,
    table,
    target_options,
    terminal_width,
)
from innoscope.cli.parameters import Duration, completes, seconds_option
from innoscope.common import console
from innoscope.diagnose.collect import EvidenceCollector, Sources
from innoscope.diagnose.rules import default_rules
from innoscope.diagnose.watch.events import EventWriter
from innoscope.diagnose.watch.folder import FolderLimits, IncidentFolder
from innoscope.diagnose.watch.live import LiveWatch
from innoscope.diagnose.watch.loop import WatchSettings
from innoscope.diagnose.watch.triggers import FINDING, PLAIN, current, known, names, parse, shown
from innoscope.target.discover import find_one

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from innoscope.target.model import Target

#: Seconds of evidence that --list collects before it shows values.
_LIST_S = 3.0

_EPILOG = """\b
Examples:
  innoscope watch --trigger 'threads_running>50'
  innoscope watch --trigger 'share.row_lock>0.5' --trigger 'checkpoint_age_ratio>0.9' --dir /var/tmp/stalls
  innoscope watch --trigger 'response_time>200ms' --for 5 --once
  innoscope watch --trigger finding:flushing_storm --json
  innoscope watch --list                    the names that rules may use, with their current values

\b
A rule is a name, one of > >= < <= and a number (% us ms s K M G), or finding:NAME. The file also contains
the time before the stall. `innoscope diagnose FILE` reads the file on any machine.
Exit codes: 0 the file was written (--once), 2 no such rule, 3 no server, or several, 5 not a server,
6 no privileges, 12 cannot write, 130 Ctrl-C.  More: docs/watch.md
"""
_SIZE = re.compile(r"([0-9]+)([KMG]?)")
_SIZES = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def _size(_: click.Context, __: click.Parameter, value: str) -> int:
    """Parse a size such as ``200M`` and return it in bytes. Raise BadParameter if it is malformed."""
    match = _SIZE.fullmatch(value)
    if match is None:
        raise click.BadParameter(f"{value!r} is not a size: 500K, 200M, 2G")
    return int(match[1]) * _SIZES[match[2]]


def _rules() -> Mapping[str, str]:
    """Return the names that rules may use, with titles, for shell completion."""
    return {f"{FINDING}{rule.name}": rule.title for rule in default_rules()} | dict(PLAIN)


@click.command("watch", epilog=_EPILOG)
@target_options
@click.option(
    "--trigger",
    "rules",
    multiple=True,
    metavar="RULE",
    shell_complete=completes(_rules),
    help="Condition that starts a capture (may be repeated: any one of them triggers).",
)
@click.option(
    "--for",
    "for_s",
    type=Duration(0, 300),
    default="3s",
    show_default=True,
    help="How long a condition must hold, at most 5m.",
)
@seconds_option(1, 300, "How long to capture after the trigger, 1s to 5m.")
@click.option(
    "--before",
    "before_s",
    type=Duration(0, 600),
    default="1m",
    show_default=True,
    help="How much time before the stall to include, at most 10m.",
)
@click.option(
    "--dir",
    "folder",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path(),
    help="Directory for incident files.  [default: the current directory]",
)
@click.option(
    "--max",
    "most",
    type=click.IntRange(1),
    default=20,
    show_default=True,
    help="Maximum number of files; the oldest are removed first.",
)
@click.option(
    "--max-bytes",
    callback=_size,
    metavar="SIZE",
    default="200M",
    show_default=True,
    help="Maximum total size of the files; the oldest are removed first.",
)
@click.option(
    "--cooldown",
    type=Duration(1),
    default="5m",
    show_default=True,
    help="Pause after each file.",
)
@click.option("--once", is_flag=True, help="Exit after the first file.")
@click.option(
    "--list", "listing", is_flag=True, help="Show the names that rules may use, with their current values."
)
@source_options
@sql_options
@json_option
def command(
    pid: int | None, socket: str | None, port: int | None, rules: tuple[str, ...], for_s: float,
    seconds: float, before_s: float, folder: Path, most: int, max_bytes: int, cooldown: float, once: bool,
    listing: bool, no_sql: bool, no_probes: bool, defaults_file: str | None, user: str | None, as_json: bool,
) -> None:  # fmt: skip
    """Wait for a stall of one server, and write the stall and the time before it to an incident file.

    Once a second, all threads are sampled and all metrics are read; memory use is bounded. Nothing is stopped
    or changed. If the server restarts, the command waits for the new process.
    """
    if not rules and not listing:
        raise click.UsageError("no trigger: add a rule, such as --trigger 'threads_running>50'")

    triggers = tuple(parse(rule) for rule in rules)
    sources = Sources(not no_sql, not no_probes, defaults_file, user)
    target = find_one(pid, socket, port)
    if listing:
        _list(target, sources, as_json)
        return
    incidents = IncidentFolder(folder, FolderLimits(most, max_bytes))
    incidents.prepare()
    settings = WatchSettings(triggers, for_s, seconds, before_s, cooldown)
    live = LiveWatch(target, sources, settings, incidents, EventWriter(console.line, as_json), once)
    with _ended_by_signals() as ended:
        written = live.run(ended)
    if written is None:
        raise KeyboardInterrupt


@contextlib.contextmanager
def _ended_by_signals() -> Iterator[threading.Event]:
    """Yield an event that Ctrl-C and SIGTERM set, so that probes are detached and no partial file remains."""
    ended = threading.Event()
    before = {
        number: signal.signal(number, lambda *_: ended.set()) for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield ended
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _list(target: Target, sources: Sources, as_json: bool) -> None:
    """Collect evidence for a few seconds, and print the names that rules may use, with their values."""
    with contextlib.closing(EvidenceCollector(target, sources, interval_s=1.0)) as collector:
        console.progress(f"collecting for {_LIST_S:g} s …")
        try:
            evidence = collector.run(_LIST_S)
        finally:
            console.clear_progress()
        values = {name: current(name, evidence) for name in names(evidence)}
    if as_json:
        finite = {name: number for name, number in values.items() if number is None or math.isfinite(number)}
        console.document(finite)
        return
    rows = [(name, shown(number)) for name, number in values.items() if number is not None]
    console.lines(table(("NAME", "NOW"), rows, right=frozenset({"NOW"}), width=terminal_width()))
    console.lines(("", "And:"))
    for kind, there_are in known():
        console.line(f"  {kind}: {', '.join(there_are)}")
