"""``innoscope latency``: explain why statements are slow, by the wait classes of sampled statements."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Final

import click

from innoscope.cli.common import full_option, target_options
from innoscope.cli.open_server import How, debug_options, fetched
from innoscope.cli.parameters import Duration, seconds_option
from innoscope.common import console
from innoscope.memory.statements.layout import installed, text_members
from innoscope.probes.governor import DEFAULT_BUDGET
from innoscope.probes.latency import document, text
from innoscope.probes.latency.model import LatencyOptions
from innoscope.probes.latency.run import run
from innoscope.sampling.profile.setup import Naming
from innoscope.sampling.render.sink import open_sink
from innoscope.target.discover import find_one

if TYPE_CHECKING:
    from pathlib import Path

_PATIENCE_S: Final = 1.0  # seconds after which progress is shown
_DEFAULT_S: Final = 10.0

_EPILOG = """\b
Examples:
  innoscope latency                       10 s of the only server: why is p99 slow?
  innoscope latency 1m --limit 30         a minute, 30 digests
  innoscope latency 30s --stacks          also where the slow statements wait
  innoscope latency 30s --pid 4242 --json
  innoscope latency --budget 0.05         a server with many statements per second

\b
Exit codes: 3 no server, or several, 4 the server exited (results so far are printed), 6 no privileges,
7 the kernel does not support it, 14 too many statements for the budget, 15 the server's function for
commands cannot be probed.  More: docs/latency.md, docs/waits.md.
"""


@click.command("latency", epilog=_EPILOG)
@click.argument("duration", type=Duration(1, 3600), required=False)
@seconds_option(1, 3600, "The same as DURATION.", default=None)
@target_options
@click.option(
    "--budget", type=click.FloatRange(0, 1), default=DEFAULT_BUDGET, show_default=True,
    help="Maximum cost, as a share of the CPUs that the server may use.",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@click.option("--stacks", is_flag=True, help="Also show the stacks of the waits of slow statements.")
@full_option
@click.option(
    "-l", "--limit", type=click.IntRange(min=1), default=text.DIGESTS, show_default=True, metavar="N",
    help="At most N digests and stacks (text).",
)  # fmt: skip
@debug_options
def command(
    duration: float | None, seconds: float | None, pid: int | None, socket: str | None, port: int | None,
    budget: float, as_json: bool, stacks: bool, full: bool, limit: int, debug_dirs: tuple[Path, ...],
    no_debuginfod: bool,
) -> None:  # fmt: skip
    """Show why the p99 latency of statements is higher than their mean, for DURATION (default: 10s).

    Statements are sampled at random where they begin. Each one's time is divided into time on a CPU, time
    waiting for a CPU, and waits by class. The tables show the share of each class in the mean, in the
    variance and in the p99 excess: the time by which the slowest 1 % exceed the mean.

    Nothing is stopped, no SQL is used, and no probe remains attached. If the server executes too many
    statements for the budget, the command refuses after a trial of at most 0.25 s.
    """
    if duration is not None and seconds is not None:
        raise click.UsageError("give the duration either as DURATION or as --seconds")
    target = find_one(pid, socket, port)
    how = How(debug_dirs=debug_dirs, fetch=not no_debuginfod)
    naming = Naming(debug_dirs=tuple(map(str, debug_dirs)), fetch=partial(fetched, how=how))
    progress = _Progress()
    with open_sink(None) as sink:
        try:
            progress.show("looking for prepared statements")
            length = duration or seconds or _DEFAULT_S
            options = LatencyOptions(length, budget, installed().commands, text_members(target))
            result = run(target, options, naming, progress.show)
        finally:
            console.clear_progress()
        if as_json:
            sink.line(document.line(result, target))
        else:
            for line in text.lines(result, target, limit, stacks=stacks, full=full):
                sink.line(line)
    if result.error is not None:
        raise result.error


class _Progress:
    """Shows progress on standard error once the profile has taken a second, at most once a second."""

    def __init__(self) -> None:
        self._next = time.monotonic() + _PATIENCE_S

    def show(self, what: str) -> None:
        """Show the current step."""
        if console.shows_progress() and (now := time.monotonic()) >= self._next:
            self._next = now + 1.0
            console.progress(what)
