"""``innoscope self-profile``: run py-spy on the agent or the sensor, never on a server."""

from __future__ import annotations

import math
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Final

import click

from innoscope.cli.parameters import seconds_option
from innoscope.common.errors import ExitCode, InnoscopeError, NoRights, NoSuchProcess, NoTarget
from innoscope.sampling.render.sink import open_sink
from innoscope.target.proc import ProcFs

#: Arguments, one a line: Python's own options, our module or script, our options, the command.
_OURS: Final = re.compile(r"(-[^cm\n].*\n)*(-m\ninnoscope\.cli\.main|(.*/)?innoscope)\n(-.*\n)*(?P<name>.+)")
_TOP: Final = 20

_EPILOG = """\b
Examples:
  sudo innoscope self-profile                                 the agent of this host: its top functions
  sudo innoscope self-profile --format flamegraph -o agent.svg
  sudo innoscope self-profile --format speedscope -o agent.json       for https://www.speedscope.app
  sudo innoscope self-profile --format raw | sort -rn -k2             folded stacks
  sudo innoscope self-profile --sensor --seconds 30 --idle            the sensor, waiting threads too

Exit codes: 3 no agent or sensor runs, or several do, 4 no such process, 5 not an agent or sensor,
6 no rights.
"""


class NotOurs(InnoscopeError):
    """The process exists, but is not one of Innoscope's."""

    exit_code = ExitCode.WRONG_PROCESS


@click.command("self-profile", epilog=_EPILOG)
@click.option("--sensor", is_flag=True, help="The sensor instead of the agent.")
@click.option("-p", "--pid", type=click.IntRange(1), help="Another process of Innoscope's.")
@seconds_option(1, 3600, "How long to sample, in whole seconds, at most 1h.")
@click.option(
    "-f", "--format", "form", type=click.Choice(("text", "flamegraph", "speedscope", "raw")),
    default="text", show_default=True, help="Output format; all but text are py-spy's own.",
)  # fmt: skip
@click.option(
    "-o", "--output", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE",
    help="Write there instead; the file appears whole or not at all.",
)  # fmt: skip
@click.option("--idle", is_flag=True, help="Threads that wait, too.")
@click.option("--native", is_flag=True, help="C frames too; this pauses the process for each sample.")
def command(
    sensor: bool, pid: int | None, seconds: float, form: str, output: Path | None, idle: bool, native: bool
) -> None:
    """Profile the agent, or the sensor, with py-spy.

    py-spy reads the process's memory from outside and does not pause it, unless --native asks for it. For
    servers there is `innoscope stacks`.
    """
    if pid is not None and sensor:
        raise click.UsageError("--pid or --sensor, not both")
    if form == "flamegraph" and output is None and sys.stdout.isatty():
        raise click.UsageError("flamegraph is not for a terminal: --output FILE")
    proc = ProcFs()
    pid = pid or find("sensor" if sensor else "agent", proc)
    name = command_of(pid, proc)
    options = ["--native"] if native else ["--nonblocking"]  # for C frames py-spy has to stop the process
    options += ["--idle"] if idle else []
    options += ["--format", "raw", "--nolineno"] if form == "text" else ["--format", form]
    with open_sink(output) as sink:
        lines = _record(pid, seconds, options)
        for line in table(f"{name}, pid {pid}", lines) if form == "text" else lines:
            sink.line(line)


def find(command: str, proc: ProcFs) -> int:
    """Return the pid of the only process that runs ``innoscope COMMAND``. Raises NoTarget."""
    found = []
    for pid in proc.pids():
        with suppress(InnoscopeError):
            if command_of(pid, proc) == command:
                found.append(pid)
    if len(found) == 1:
        return found[0]
    raise NoTarget(
        f"cannot choose the {command} to profile: found {', '.join(map(str, found)) or 'none'}",
        remedy=f"run it as root, start one (sudo innoscope {command}) or name one (--pid PID)",
    )


def command_of(pid: int, proc: ProcFs) -> str:
    """Return the command that a process of ours runs. Raises NotOurs, NoRights or NoSuchProcess."""
    try:
        program, arguments = proc.exe(pid)[0], proc.cmdline(pid)[1:]
    except ProcessLookupError as error:
        raise NoSuchProcess(f"there is no process {pid}", remedy="innoscope self-profile") from error
    except PermissionError as error:
        remedy = f"sudo innoscope self-profile --pid {pid}"
        raise NoRights(f"no right to read process {pid}", remedy=remedy) from error
    match = _OURS.match("\n".join(arguments))
    if match is None or not Path(program).name.startswith("python"):
        raise NotOurs(
            f"process {pid} is not one of Innoscope's own, and only those are profiled",
            remedy=f"the stacks of a server: innoscope stacks --pid {pid}",
        )
    return match["name"]


def _record(pid: int, seconds: float, options: list[str]) -> list[str]:
    """Return the lines that ``py-spy record`` writes. Raises InnoscopeError."""
    py_spy = shutil.which("py-spy", path=Path(sys.executable).parent) or shutil.which("py-spy")
    if py_spy is None:
        raise InnoscopeError("py-spy is not installed", remedy=f"{sys.executable} -m pip install py-spy")
    with tempfile.TemporaryFile() as file:
        options += ["--duration", str(math.ceil(seconds)), "--output", f"/proc/self/fd/{file.fileno()}"]
        command = [py_spy, "record", "--pid", str(pid), *options]
        done = subprocess.run(command, capture_output=True, check=False, pass_fds=[file.fileno()])
        if done.returncode:
            words = done.stderr.decode(errors="replace").partition("Stack backtrace:")[0].split()
            raise InnoscopeError(
                f"py-spy failed on process {pid}: {' '.join(words)}",
                remedy=f"sudo innoscope self-profile --pid {pid} --idle",
            )
        return file.read().decode(errors="replace").splitlines()


def table(process: str, folded: list[str]) -> list[str]:
    """Return lines for a person: the functions that ran most themselves."""
    own: Counter[str] = Counter()
    total: Counter[str] = Counter()
    for line in folded:
        stack, _, count = line.rpartition(" ")
        functions = stack.split(";")
        own[functions[-1]] += int(count)
        total.update(dict.fromkeys(functions, int(count)))
    samples = own.total()
    if not samples:
        return [f"{process}: no thread ran; waiting threads too: --idle"]
    rows = [
        f"{count / samples:6.1%}  {total[function] / samples:6.1%}  {function}"
        for function, count in own.most_common(_TOP)
    ]
    return [f"{process}: {samples:,} samples", "", "   own   total  function", *rows]
