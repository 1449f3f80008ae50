"""``innoscope profile``: profile the CPU time or the waiting time of a server for a few seconds."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from innoscope.cli.common import target_options
from innoscope.cli.open_server import How, debug_options, fetched
from innoscope.cli.parameters import seconds_option
from innoscope.cli.report_options import chosen_format, filter_options, format_options, frame_options, write
from innoscope.common import console
from innoscope.daemon.agent import config as configuration
from innoscope.daemon.agent.push_once import ReportPush
from innoscope.sampling.fold import Filter
from innoscope.sampling.profile.offcpu import OffCpuProfiler
from innoscope.sampling.profile.oncpu import OnCpuProfiler
from innoscope.sampling.profile.report import line, report
from innoscope.sampling.profile.run import run
from innoscope.sampling.profile.setup import Naming
from innoscope.sampling.render.sink import open_sink
from innoscope.sampling.render.text import Detail
from innoscope.target.discover import find_one
from innoscope.target.native_errors import gone

if TYPE_CHECKING:
    from collections.abc import Callable

    from innoscope.sampling.profile.run import Profiler
    from innoscope.target.model import Target

_PATIENCE_S = 2.0  # seconds; progress is shown only if the profile takes longer than this

_EPILOG = """\b
Examples:
  innoscope profile                             10 s of CPU time of the only server, top stacks first
  innoscope profile --format html -o cpu.html   a flame graph
  innoscope profile --by wait                   CPU time by wait class
  innoscope profile --off-cpu --seconds 30      what the threads wait for, with exact times
  innoscope profile --off-cpu --wait fsync_redo --by thread
  innoscope profile --pid 4242 --seconds 600    a crash recovery or shutdown; Ctrl-C ends the profile early
  innoscope profile -f pprof -o cpu.pb.gz && go tool pprof -top cpu.pb.gz
  innoscope profile --off-cpu --push /etc/innoscope/agent.toml    to Pyroscope or Parca, see docs/fleet.md

\b
Exit codes: 3 no server, or several, 4 the server exited (what was collected is printed), 5 not a server,
6 no privileges, 7 the kernel does not support it, 17 not pushed (what was collected is printed).
More: docs/profile.md, docs/waits.md, docs/json.md.
"""


@click.command("profile", epilog=_EPILOG)
@target_options
@click.option("--off-cpu", is_flag=True, help="Profile blocked and runnable time instead of CPU time.")
@seconds_option(
    0.1, 86_400, "Duration, at most 24h; Ctrl-C ends the profile early and prints the result so far."
)
@click.option(
    "--frequency",
    type=click.IntRange(min=1, max=9999),
    metavar="HZ",
    help="Samples per second on each CPU.  [default: 99]",
)
@click.option(
    "--push",
    "push_file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Also send the profile to the receiver in [push] of this agent's configuration file.",
)
@format_options
@filter_options
@frame_options
@debug_options
def command(
    pid: int | None, socket: str | None, port: int | None, off_cpu: bool, seconds: float,
    frequency: int | None, push_file: Path | None, by: str | None, show_all: bool, full: bool,
    form: str | None, as_json: bool,
    output: Path | None,
    waits: tuple[str, ...], grep: str | None, limit: int | None, inlines: bool, kernel: bool,
    debug_dirs: tuple[Path, ...], no_debuginfod: bool,
) -> None:  # fmt: skip
    """Profile CPU time for a few seconds or, with --off-cpu, the time that threads spend waiting.

    Profiling needs no SQL, and works during startup, crash recovery and shutdown. Nothing is stopped: the
    kernel copies registers and stacks of the server's threads while they run, or when they go to sleep.

    The text format hides idle stacks unless --all, --wait or --grep selects them. With --off-cpu, stacks
    start at the server's innermost function; with --full, the frames of the C library are shown too.
    """
    form = chosen_format(form, as_json, by, output)
    if off_cpu and frequency is not None:
        raise click.UsageError("cannot use --frequency with --off-cpu, which measures exact times")

    push = ReportPush(configuration.load(push_file)) if push_file else None
    target = find_one(pid, socket, port)
    how = How(inlines=inlines, kernel=kernel, debug_dirs=debug_dirs, fetch=not no_debuginfod)
    naming = Naming(inlines, kernel, tuple(map(str, debug_dirs)), partial(fetched, how=how))
    with open_sink(output) as sink:
        profiler = _profiler(target, naming, frequency or 99, off_cpu)
        try:
            profile, alive = run(profiler, target, seconds, _progress(seconds))
        finally:
            console.clear_progress()
        made = report(profile, Filter(waits, grep))
        if form == "json":
            sink.line(line(profile, made))
        detail = Detail(idle=show_all or bool(made.wanted), libraries=full or kernel or not off_cpu)
        write(made, sink, form, by or "stack", limit, detail)
    if push is not None:
        console.line(push.send(made), err=True)
    if not alive:
        raise gone(target.pid)


def _profiler(target: Target, naming: Naming, frequency: int, off_cpu: bool) -> Profiler:
    if off_cpu:
        return OffCpuProfiler(target, naming)

    return OnCpuProfiler(target, frequency, naming)


def _progress(seconds: float) -> Callable[[float, str], None] | None:
    """Return a function that shows progress on standard error.

    Return None if standard error is not a terminal, or if the profile is short.
    """
    if not console.shows_progress() or seconds <= _PATIENCE_S:
        return None

    def show(gone_by: float, so_far: str) -> None:
        console.progress(f"{gone_by:.0f} of {seconds:g} s, {so_far}; Ctrl-C ends it early")

    return show
