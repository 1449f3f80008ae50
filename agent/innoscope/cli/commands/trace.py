"""``innoscope trace``: trace one function of a server on demand, for a limited time."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from innoscope.cli.common import sql_options, target_options
from innoscope.cli.parameters import completes, seconds_option
from innoscope.common import console
from innoscope.probes.catalog import default_catalog
from innoscope.probes.trace import document, text
from innoscope.probes.trace.model import FORCED_SECONDS, MAX_FORCED_SECONDS, SECONDS, TraceOptions
from innoscope.probes.trace.run import run
from innoscope.probes.trace.server_pace import ServerPace
from innoscope.sampling.render import BINARY, FORMATS, encode
from innoscope.sampling.render.sink import open_sink
from innoscope.target.discover import find_one

if TYPE_CHECKING:
    from collections.abc import Mapping

    from innoscope.probes.trace.model import TraceResult
    from innoscope.sampling.render.sink import File, Stdout
    from innoscope.target.model import Target

_PATIENCE_S: Final = 1.0  # progress is shown if tracing takes longer

_EPILOG = """\b
FUNCTION is a probe of the catalog (innoscope probes list), else a function of the server: its symbol, its
qualified name, or a glob that matches only one.

\b
Examples:
  innoscope trace redo_write                             calls a second, and how long they take
  innoscope trace buf_LRU_get_free_block --callers       who allocates from the buffer pool?
  innoscope trace ha_innobase::open --seconds 60 --json
  innoscope trace buf_flush_batch --arg 1 --bits 32      which kinds of batch, how often
  innoscope trace fsync --callers --format html -o fsync.html
  innoscope trace row_search_for_mysql --force           too hot: 5 s, and what the server lost

\b
Exit codes: 2 the name is ambiguous, 3 no or several servers, 4 the server ended (with its output so far),
6 no privileges, 7 the kernel does not support it, 14 too hot, 15 no such function here.  More: docs/trace.md.
"""


def _probes() -> Mapping[str, str]:
    """Return the names of all probes with their families, for shell completion."""
    catalog = default_catalog()
    return {probe.name: probe.family for probe in catalog.of(frozenset(catalog.families))}


@click.command("trace", epilog=_EPILOG)
@click.argument("function", shell_complete=completes(_probes))
@target_options
@click.option("-c", "--callers", is_flag=True, help="Show the stacks that call it, most frequent first.")
@click.option(
    "-a", "--arg", "argument", type=click.IntRange(0, 5), metavar="N",
    help="Show the values of this integer or pointer argument, from 0 (a method's 0 is its object).",
)  # fmt: skip
@click.option(
    "--bits", type=click.Choice(["8", "16", "32", "64"]), default="64", show_default=True,
    help="The width of that argument.",
)  # fmt: skip
@seconds_option(
    0.1, 600, "How long.  [default: 10s, at most 10m; with --force 5s, at most 30s]", default=None
)
@click.option("--no-latency", is_flag=True, help="Attach no return probe: calls are counted, not timed.")
@click.option(
    "--budget", type=click.FloatRange(0, 1), default=0.01, show_default=True,
    help="Most that it may cost, as a share of the CPUs that the server may use.",
)  # fmt: skip
@click.option("--force", is_flag=True, help="Trace although it is too hot; report what the server lost.")
@click.option(
    "-f", "--format", "form", type=click.Choice(FORMATS),
    help="Output format; tree, folded, speedscope, pprof and html are of --callers.  [default: text]",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="The same as --format json.")
@click.option(
    "-o", "--output", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE",
    help="Write to this file; it appears complete or not at all.",
)  # fmt: skip
@click.option("-l", "--limit", type=click.IntRange(min=1), metavar="N", help="At most N stacks (text).")
@sql_options
def command(
    function: str, pid: int | None, socket: str | None, port: int | None, callers: bool, argument: int | None,
    bits: str, seconds: float | None, no_latency: bool, budget: float, force: bool, form: str | None,
    as_json: bool, output: Path | None, limit: int | None, defaults_file: str | None, user: str | None,
) -> None:  # fmt: skip
    """Trace one function for some seconds: how often it is called, how long it takes, by whom, with what.

    A function that is called too often is tried for some milliseconds and refused, with its rate, its cost
    and an alternative. Ctrl-C ends early and prints what was collected. Nothing is stopped, and no probe
    stays behind.
    """
    form = _format(form, as_json, callers, output)

    wanted = TraceOptions(
        seconds=_seconds(seconds, force), callers=callers, argument=argument, bits=int(bits),
        latency=not no_latency, force=force, budget=budget,
    )  # fmt: skip
    target = find_one(pid, socket, port)
    with open_sink(output) as sink:
        progress = Progress(function)
        try:
            seen = run(
                target, function, wanted,
                progress=progress.say, open_pace=lambda: ServerPace(target, defaults_file, user),
            )  # fmt: skip
        finally:
            progress.clear()
        _write(seen, target, sink, form, limit)
    if seen.error is not None:
        raise seen.error


def _format(form: str | None, as_json: bool, callers: bool, output: Path | None) -> str:
    """Return the output format. Raise UsageError if options contradict each other."""
    if as_json and form not in (None, "json"):
        raise click.UsageError(f"--json contradicts --format {form}")
    form = "json" if as_json else form or "text"
    if form not in ("text", "json") and not callers:
        raise click.UsageError(f"--format {form} requires --callers")
    if form in BINARY and output is None and sys.stdout.isatty():
        raise click.UsageError(f"cannot write {form} to a terminal: use --output FILE")
    return form


def _seconds(seconds: float | None, force: bool) -> float:
    if force and seconds and seconds > MAX_FORCED_SECONDS:
        raise click.UsageError(f"--seconds is limited to {MAX_FORCED_SECONDS:g} with --force")
    return seconds or (FORCED_SECONDS if force else SECONDS)


def _write(seen: TraceResult, target: Target, sink: Stdout | File, form: str, limit: int | None) -> None:
    if form == "json":
        sink.line(document.line(seen, target))
    elif form == "text":
        for line in text.lines(seen, target, limit):
            sink.line(line)
    elif seen.report is not None:
        sink.raw(encode(seen.report, form, limit=limit))


class Progress:
    """Shows progress on standard error after one second, if that is a terminal."""

    def __init__(self, function: str) -> None:
        self._function = function
        self._began = time.monotonic()

    def say(self, what: str) -> None:
        """Show the current step."""
        if time.monotonic() - self._began > _PATIENCE_S:
            console.progress(f"{self._function}: {what}")

    def clear(self) -> None:
        """Remove the progress line."""
        console.clear_progress()
