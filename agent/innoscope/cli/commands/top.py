"""``innoscope top``: where all threads are, once a second."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import click

from innoscope.cli.common import sql_options, target_options
from innoscope.cli.open_server import How, method_options, open_engine
from innoscope.cli.top import headless
from innoscope.cli.top.snapshot_loop import Looker
from innoscope.cli.top.statements import QueryFeed, SqlAsk
from innoscope.common import console
from innoscope.sampling.recording import Recorder
from innoscope.target.discover import find_one

if TYPE_CHECKING:
    from innoscope.sampling.engine import Engine
    from innoscope.target.model import Target


@click.command("top")
@target_options
@sql_options
@click.option(
    "--interval",
    type=click.FloatRange(min=0.1),
    default=1.0,
    show_default=True,
    help="Seconds between looks.",
)
@click.option("--duration", type=click.FloatRange(min=0.1), help="End by itself after this many seconds.")
@click.option(
    "--queries/--no-queries",
    default=True,
    show_default=True,
    help="Show what the threads run, if SQL can be had.",
)
@method_options
@click.option(
    "--record",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Keep every look in FILE for `innoscope replay`. Take a name that ends in .gz: a minute at 1,000 "
    "threads is 1.3 MB then, and 85 MB otherwise.",
)
def command(
    pid: int | None,
    socket: str | None,
    port: int | None,
    defaults_file: str | None,
    user: str | None,
    interval: float,
    duration: float | None,
    queries: bool,
    method: str,
    debug_dirs: tuple[Path, ...],
    no_debuginfod: bool,
    record: Path | None,
) -> int:
    """Show wait classes, busiest stacks and their statements, live.

    The server is never stopped. Keys: ? lists them. With --record and without a terminal there is no screen:
    the looks are recorded until --duration is over, Ctrl-C, or the server ends.
    """
    screen = sys.stdin.isatty() and sys.stdout.isatty()
    if not screen and record is None:
        raise click.UsageError("top needs a terminal. Without one: innoscope stacks, or top --record FILE.")

    target = find_one(pid, socket, port)
    eyes = _engine(target, How(method, debug_dirs=debug_dirs, fetch=not no_debuginfod, repeated=True))
    feed = QueryFeed(SqlAsk(target, options_file=defaults_file, user=user)) if queries else None
    with ExitStack() as stack:
        looker = Looker(eyes, feed=feed, recorder=_recorder(record, interval, stack), patience_s=interval / 5)
        code = _show(looker, interval, duration) if screen else _record(looker, interval, duration)
    if record is not None and looker.recorder:
        _tell(f"{looker.recorder.looks:,} looks in {record}; to see them: innoscope replay {record}")
    return code


def _engine(target: Target, how: How) -> Engine:
    """The engine, tried once, so that what cannot work is said before the screen is taken."""
    engine, notes = open_engine(target, how)
    for note in notes:
        _tell(note)
    engine.look()
    return engine


def _recorder(path: Path | None, interval: float, stack: ExitStack) -> Recorder | None:
    if path is None:
        return None

    return stack.enter_context(Recorder(path, interval_s=interval))


def _show(looker: Looker, interval: float, duration: float | None) -> int:
    from innoscope.cli.top.live import TopApp  # here, since only a screen needs textual

    return TopApp(looker, interval_s=interval, duration_s=duration).run_to_end()


def _record(looker: Looker, interval: float, duration: float | None) -> int:
    headless.record(looker, interval_s=interval, duration_s=duration, say=_tell)
    return 0


def _tell(text: str) -> None:
    console.line(text, err=True)
