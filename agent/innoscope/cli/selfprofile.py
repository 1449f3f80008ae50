"""``innoscope self-profile``: what our own processes spend their CPU time on."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from innoscope import emit
from innoscope.errors import NoSuchProcess
from innoscope.selfprofile import folded, ours, pyspy
from innoscope.selfprofile.pyspy import FORMATS
from innoscope.sensor.client import SensorClient
from innoscope.stacks.render.sink import open_sink

if TYPE_CHECKING:
    from collections.abc import Callable

    from innoscope.selfprofile.ours import Ours

_TOP = 20
_CPUCLOCK_SCHED = 2
_PATIENCE_S = 2.0  # progress is shown when it takes longer

_EPILOG = """\b
Examples:
  sudo innoscope self-profile                                 the agent of this host: its top functions
  sudo innoscope self-profile --format flamegraph -o agent.svg
  sudo innoscope self-profile --format speedscope -o agent.json       for https://www.speedscope.app
  sudo innoscope self-profile --format raw | sort -rn -k2             folded stacks
  sudo innoscope self-profile --sensor --seconds 30 --idle            the sensor, waiting threads too

\b
py-spy reads the process's memory from outside and does not pause it, unless --native asks for it. It is
started for Innoscope's own processes only, never for a server. When the agent passes its own CPU budget it
takes such a profile by itself, and `innoscope doctor` shows it: docs/self-profile.md.
Exit codes: 4 no agent or sensor runs, or several do, 5 not a process of ours, 6 no rights, 13 no such sensor.
"""


@click.command("self-profile", epilog=_EPILOG)
@click.option("--sensor", is_flag=True, help="The sensor instead of the agent.")
@click.option("--socket", metavar="PATH", help="With --sensor: the one that answers there.")
@click.option(
    "-p", "--pid", type=click.IntRange(1), help="This process of Innoscope's, whatever its command."
)
@click.option(
    "-s", "--seconds", type=click.IntRange(1, 3600), default=10, show_default=True, help="How long to look."
)
@click.option(
    "-f", "--format", "form", type=click.Choice(("text", *FORMATS)), default="text", show_default=True,
    help="Output format; all but text are py-spy's own.",
)  # fmt: skip
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Write there instead; the file appears whole or not at all.",
)
@click.option("--idle", is_flag=True, help="Threads that wait, too.")
@click.option("--native", is_flag=True, help="C frames too; this pauses the process for each look.")
def command(
    sensor: bool, socket: str | None, pid: int | None, seconds: int, form: str, output: Path | None,
    idle: bool, native: bool,
) -> None:  # fmt: skip
    """Profile the agent, or the sensor, with py-spy.

    It answers where the CPU time of Innoscope's own Python processes goes. Servers are looked at with
    `innoscope stacks`.
    """
    if socket is not None and not sensor:
        raise click.UsageError("--socket is the sensor's: --sensor --socket PATH")
    if pid is not None and sensor:
        raise click.UsageError("--pid or --sensor, not both")
    if form == "flamegraph" and output is None and sys.stdout.isatty():
        raise click.UsageError("flamegraph is not for a terminal: --output FILE")

    who = _who(sensor, socket, pid)
    raw = form == "text"
    order = pyspy.Order(who.pid, seconds, "raw" if raw else form, native, idle)
    with open_sink(output) as sink:
        before, began = _cpu_seconds(who.pid), time.monotonic()
        content = pyspy.record(order, _progress(who, seconds))
        if raw:
            share = (_cpu_seconds(who.pid) - before) / (time.monotonic() - began)
            for line in _text(who, share, content):
                sink.line(line)
        else:
            sink.raw(content)


def _who(sensor: bool, socket: str | None, pid: int | None) -> Ours:
    """A process of ours. Raises InnoscopeError."""
    if socket is not None:
        pid = int(SensorClient(socket).hello()["pid"])
    return ours.find("sensor" if sensor else "agent", pid)


def _cpu_seconds(pid: int) -> float:
    """Another process's clock (linux/posix-timers.h, MAKE_PROCESS_CPUCLOCK). Raises NoSuchProcess."""
    try:
        return time.clock_gettime(~pid << 3 | _CPUCLOCK_SCHED)
    except OSError as error:
        raise NoSuchProcess(f"process {pid} has ended", remedy="innoscope self-profile") from error


def _text(who: Ours, share: float, content: bytes) -> list[str]:
    stacks = folded.parse(content)
    samples = sum(stacks.values())
    first = f"{who.command}, pid {who.pid}: {share:.1%} of one core, {samples:,} samples"
    if not samples:
        return [f"{first}: no thread ran", "  waiting threads too: --idle"]
    return [first, "", *folded.table(stacks, _TOP)]


def _progress(who: Ours, seconds: int) -> Callable[[float], None] | None:
    """One line on stderr, from the third second on; nothing when nobody watches."""
    if not emit.watched():
        return None

    def show(elapsed: float) -> None:
        if elapsed >= seconds:
            emit.wipe()
        elif elapsed > _PATIENCE_S:
            left = f"{elapsed:.0f} of {seconds} s"
            emit.progress(f"{who.command}, pid {who.pid}: {left}; Ctrl-C drops it")

    return show
