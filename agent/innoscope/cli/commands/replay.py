"""``innoscope replay``: show a recording in the live view."""

from __future__ import annotations

import shutil
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from innoscope.cli.top.player import Player, position
from innoscope.cli.top.summary import snapshot_lines, summary
from innoscope.common import console
from innoscope.common.errors import BadFile
from innoscope.sampling.classify import label
from innoscope.sampling.recording import Recording

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@click.command("replay")
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@click.option(
    "--at",
    metavar="TIME",
    help="Start at 14:05 (local time), 2026-01-31T14:05, +30s (after the start) or -5m (before the end).",
)
@click.option("--summary", is_flag=True, help="Print a summary even on a terminal.")
def command(file: Path, at: str | None, summary: bool) -> int:
    """Play back a recording made with `innoscope top --record FILE`.

    Space plays and pauses, ← and → step, [ and ] jump 10 seconds, + and - change the speed; ? lists all keys.
    Without a terminal, a summary is printed: wait classes over time, and the most frequent stacks and
    statements. With --at, the snapshot at that time is printed instead.

    \b
    Examples:
      innoscope replay hour.rec.gz                      play the recording
      innoscope replay hour.rec.gz --at 14:05           start at that time
      innoscope replay hour.rec.gz --at -30s            start 30 seconds before the end
      innoscope replay hour.rec.gz --summary | less

    \b
    Exit codes: 9 a damaged file. All codes: docs/cli.md.
    """
    screen = not summary and sys.stdin.isatty() and sys.stdout.isatty()
    recording = _open(file)
    if not len(recording):
        raise BadFile(f"{file} contains no snapshot", remedy="record again: innoscope top --record FILE")

    moment = _moment(at, recording) if at is not None else None
    return _play(recording, moment) if screen else _print(recording, moment)


def _open(file: Path) -> Recording:
    """Read the recording, and show progress on standard error."""
    with counting(f"reading {file}") as progress:
        return Recording(file, progress=progress)


@contextmanager
def counting(what: str) -> Iterator[Callable[[int], None]]:
    """Yield a function that shows the number of snapshots on standard error, if that is a terminal."""

    def progress(snapshots: int) -> None:
        if snapshots % 50 == 0:
            console.progress(f"{what}: {snapshots:,} snapshots")

    try:
        yield progress
    finally:
        console.clear_progress()


def _moment(at: str, recording: Recording) -> float:
    """Return the Unix time of ``--at``. Raise BadParameter if it is malformed."""
    try:
        return position(at.strip(), recording.times[0], recording.times[-1])
    except (ValueError, OverflowError):
        raise click.BadParameter(
            f"{at!r} is not a time: use 14:05, 2026-01-31T14:05, +30s or -5m", param_hint="--at"
        ) from None


def _play(recording: Recording, moment: float | None) -> int:
    from innoscope.cli.top.replay import ReplayApp  # imported here: only the interactive view needs textual

    label("idle")  # fail on a damaged catalog before the screen is drawn
    recording.snapshot(0)
    return ReplayApp(Player(recording, moment)).run_to_end()


def _print(recording: Recording, moment: float | None) -> int:
    columns = shutil.get_terminal_size((110, 24)).columns
    if moment is not None:
        lines = list(snapshot_lines(recording, moment, columns))
    else:
        with counting("adding up") as progress:
            lines = list(summary(recording, columns, progress))
    console.lines(lines)
    return 0
