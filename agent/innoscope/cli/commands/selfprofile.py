"""``innoscope self-profile``: run py-spy on the agent or the sensor, never on a server."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from innoscope.cli import py_spy
from innoscope.cli.parameters import seconds_option
from innoscope.sampling.render.sink import open_sink
from innoscope.target.proc import ProcFs

_EPILOG = """\b
Examples:
  sudo innoscope self-profile                                 the agent on this host: its top functions
  sudo innoscope self-profile --format flamegraph -o agent.svg
  sudo innoscope self-profile --format speedscope -o agent.json       for https://www.speedscope.app
  sudo innoscope self-profile --format raw | sort -rn -k2             folded stacks
  sudo innoscope self-profile --sensor --seconds 30 --idle            the sensor, waiting threads too

Exit codes: 3 no agent or sensor is running, or several are, 4 no such process, 5 not an agent or sensor,
6 no privileges.
"""


@click.command("self-profile", epilog=_EPILOG)
@click.option("--sensor", is_flag=True, help="Profile the sensor instead of the agent.")
@click.option("-p", "--pid", type=click.IntRange(1), help="Profile the Innoscope process with this id.")
@seconds_option(1, 3600, "Duration of sampling in whole seconds, at most 1h.")
@click.option(
    "-f", "--format", "form", type=click.Choice(("text", "flamegraph", "speedscope", "raw")),
    default="text", show_default=True, help="Output format; py-spy writes all formats except text.",
)  # fmt: skip
@click.option(
    "-o", "--output", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE",
    help="Write to this file atomically.",
)  # fmt: skip
@click.option("--idle", is_flag=True, help="Include waiting threads.")
@click.option("--native", is_flag=True, help="Include C frames; this pauses the process for each sample.")
def command(
    sensor: bool, pid: int | None, seconds: float, form: str, output: Path | None, idle: bool, native: bool
) -> None:
    """Profile the agent or the sensor with py-spy.

    py-spy reads the memory of the process from outside, and pauses it only with --native. To
    profile a server, use `innoscope profile`.
    """
    if pid is not None and sensor:
        raise click.UsageError("--pid and --sensor are mutually exclusive")
    if form == "flamegraph" and output is None and sys.stdout.isatty():
        raise click.UsageError("cannot write flamegraph to a terminal: use --output FILE")
    proc = ProcFs()
    pid = pid or py_spy.find("sensor" if sensor else "agent", proc)
    name = py_spy.command_of(pid, proc)
    options = ["--native"] if native else ["--nonblocking"]  # py-spy must stop the process to read C frames
    options += ["--idle"] if idle else []
    options += ["--format", "raw", "--nolineno"] if form == "text" else ["--format", form]
    with open_sink(output) as sink:
        lines = py_spy.record(pid, seconds, options)
        for line in py_spy.table(f"{name}, pid {pid}", lines) if form == "text" else lines:
            sink.line(line)
