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
    from innoscope.sampling.render.sink import AtomicFile, Stdout
    from innoscope.target.model import Target

_PATIENCE_S: Final = 1.0  # seconds after which progress is shown

_EPILOG = """\b
FUNCTION is a probe in the catalog (innoscope probes list), or else a function of the server: its symbol,
its qualified name, or a glob that matches only one function.

\b
Examples:
  innoscope trace redo_write                             calls per second, and their latency
  innoscope trace buf_LRU_get_free_block --callers       which code allocates from the buffer pool
  innoscope trace ha_innobase::open --seconds 60 --json
  innoscope trace buf_flush_batch --arg 1 --bits 32      the number of calls for each kind of batch
  innoscope trace fsync --callers --format html -o fsync.html
  innoscope trace row_search_for_mysql --force           a function that is called too often, for 5 s

\b
Exit codes: 2 the name is ambiguous, 3 no server, or several, 4 the server exited (results so far are
printed), 6 no privileges, 7 the kernel does not support it, 14 called too often, 15 function not found.
More: docs/trace.md.
"""


def _probes() -> Mapping[str, str]:
    """Return the names of all probes with their families, for shell completion."""
    catalog = default_catalog()
    return {probe.name: probe.family for probe in catalog.of(frozenset(catalog.families))}


@click.command("trace", epilog=_EPILOG)
@click.argument("function", shell_complete=completes(_probes))
@target_options
@click.option(
    "-c", "--callers", is_flag=True, help="Show the stacks that lead to the calls, most frequent first."
)
@click.option(
    "-a", "--arg", "argument", type=click.IntRange(0, 5), metavar="N",
    help="Show the values of integer or pointer argument N, from 0 (a method's object is argument 0).",
)  # fmt: skip
@click.option(
    "--bits", type=click.Choice(["8", "16", "32", "64"]), default="64", show_default=True,
    help="Width of this argument in bits.",
)  # fmt: skip
@seconds_option(
    0.1, 600, "Duration.  [default: 10s, at most 10m; with --force 5s, at most 30s]", default=None
)
@click.option(
    "--no-latency", is_flag=True, help="Do not attach a return probe: calls are counted, not timed."
)
@click.option(
    "--budget", type=click.FloatRange(0, 1), default=0.01, show_default=True,
    help="Maximum cost, as a share of the CPUs that the server may use.",
)  # fmt: skip
@click.option(
    "--force",
    is_flag=True,
    help="Trace a function that is called too often, and report the server's loss of throughput.",
)
@click.option(
    "-f", "--format", "form", type=click.Choice(FORMATS),
    help="Output format; tree, folded, speedscope, pprof and html need --callers.  [default: text]",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Same as --format json.")
@click.option(
    "-o", "--output", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE",
    help="Write to this file atomically.",
)  # fmt: skip
@click.option("-l", "--limit", type=click.IntRange(min=1), metavar="N", help="At most N stacks (text).")
@sql_options
def command(
    function: str, pid: int | None, socket: str | None, port: int | None, callers: bool, argument: int | None,
    bits: str, seconds: float | None, no_latency: bool, budget: float, force: bool, form: str | None,
    as_json: bool, output: Path | None, limit: int | None, defaults_file: str | None, user: str | None,
) -> None:  # fmt: skip
    """Trace one function for a few seconds: its call rate, latency, callers and argument values.

    If a function is called too often, the trace is refused after a trial of a few milliseconds, and the call
    rate, the cost and an alternative are shown. Ctrl-C ends the trace early and prints the results so far.
    Nothing is stopped, and no probe remains attached.
    """
    form = _format(form, as_json, callers, output)

    wanted = TraceOptions(
        seconds=_seconds(seconds, force), callers=callers, argument=argument, bits=int(bits),
        latency=not no_latency, force=force, budget=budget,
    )  # fmt: skip
    target = find_one(pid, socket, port)
    with open_sink(output) as sink:
        progress = TraceProgress(function)
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
        raise click.UsageError(f"cannot use --json with --format {form}")
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


def _write(
    seen: TraceResult, target: Target, sink: Stdout | AtomicFile, form: str, limit: int | None
) -> None:
    if form == "json":
        sink.line(document.line(seen, target))
    elif form == "text":
        for line in text.lines(seen, target, limit):
            sink.line(line)
    elif seen.report is not None:
        sink.raw(encode(seen.report, form, limit=limit))


class TraceProgress:
    """Shows progress on standard error, if that is a terminal, once the trace has taken a second."""

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
