"""``innoscope top``: show the stacks of all threads, updated once per second by default."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import click

from innoscope.cli.common import sql_options, target_options
from innoscope.cli.open_server import How, method_options, open_engine
from innoscope.cli.parameters import Duration, seconds_option
from innoscope.cli.top import headless
from innoscope.cli.top.live_snapshots import LiveSnapshots
from innoscope.cli.top.statements import QueryFeed, SqlAsk
from innoscope.common import console
from innoscope.sampling.recording import RecordingWriter
from innoscope.target.discover import find_one

if TYPE_CHECKING:
    from innoscope.sampling.engine import Engine
    from innoscope.target.model import Target


_EPILOG = """\b
Examples:
  sudo innoscope top                                    the only server on this host
  sudo innoscope top --pid 4242 --interval 500ms
  sudo innoscope top --record hour.rec.gz --seconds 1h  save all snapshots; without a terminal, no screen
  innoscope replay hour.rec.gz                          play back the recording

\b
Exit codes: 3 no server, or several, 4 the server exited, 5 not a server, 6 no privileges, 7 the kernel does
not support it, 12 cannot write FILE. All codes: docs/cli.md.
"""


@click.command("top", epilog=_EPILOG)
@target_options
@sql_options
@click.option(
    "-i",
    "--interval",
    type=Duration(0.1),
    default="1s",
    show_default=True,
    help="Time between snapshots.",
)
@seconds_option(0.1, 366 * 86_400, "End after this time.  [default: when you quit]", default=None)
@click.option(
    "--queries/--no-queries",
    default=True,
    show_default=True,
    help="Show the statements that threads run, if SQL works.",
)
@method_options
@click.option(
    "--record",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Write every snapshot to FILE for `innoscope replay`. Use a name that ends in .gz: a minute of "
    "1,000 threads then takes 1.3 MB instead of 85 MB.",
)
def command(
    pid: int | None,
    socket: str | None,
    port: int | None,
    defaults_file: str | None,
    user: str | None,
    interval: float,
    seconds: float | None,
    queries: bool,
    method: str,
    debug_dirs: tuple[Path, ...],
    no_debuginfod: bool,
    record: Path | None,
) -> int:
    """Show a live view of the wait classes, the most frequent stacks and their statements.

    The server is never stopped. Press ? for a list of all keys. With --record and without a terminal, there
    is no screen: snapshots are recorded until --seconds have passed, Ctrl-C is pressed, or the server exits.
    """
    screen = sys.stdin.isatty() and sys.stdout.isatty()
    if not screen and record is None:
        raise click.UsageError("top needs a terminal; without one: innoscope stacks, or top --record FILE")

    target = find_one(pid, socket, port)
    engine = _engine(target, How(method, debug_dirs=debug_dirs, fetch=not no_debuginfod, repeated=True))
    feed = QueryFeed(SqlAsk(target, options_file=defaults_file, user=user)) if queries else None
    with ExitStack() as stack:
        live = LiveSnapshots(
            engine, feed=feed, recorder=_recorder(record, interval, stack), patience_s=interval / 5
        )
        code = _show(live, interval, seconds) if screen else _record(live, interval, seconds)
    if record is not None and live.recorder:
        _tell(f"{live.recorder.snapshots:,} snapshots in {record}; to view them: innoscope replay {record}")
    return code


def _engine(target: Target, how: How) -> Engine:
    """Open the engine and take a first snapshot, so that errors appear before the screen is drawn."""
    engine, notes = open_engine(target, how)
    for note in notes:
        _tell(note)
    engine.take_snapshot()
    return engine


def _recorder(path: Path | None, interval: float, stack: ExitStack) -> RecordingWriter | None:
    if path is None:
        return None

    return stack.enter_context(RecordingWriter(path, interval_s=interval))


def _show(live: LiveSnapshots, interval: float, duration: float | None) -> int:
    from innoscope.cli.top.live import TopApp  # imported here: only the interactive view needs textual

    return TopApp(live, interval_s=interval, duration_s=duration).run_to_end()


def _record(live: LiveSnapshots, interval: float, duration: float | None) -> int:
    headless.record(live, interval_s=interval, duration_s=duration, say=_tell)
    return 0


def _tell(text: str) -> None:
    console.line(text, err=True)
