"""Find Innoscope's own processes and run py-spy on them, for ``innoscope self-profile``."""

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
from typing import TYPE_CHECKING, Final

from innoscope.common.errors import ExitCode, InnoscopeError, NoRights, NoSuchProcess, NoTarget

if TYPE_CHECKING:
    from innoscope.target.proc import ProcFs

#: Matches the arguments of an Innoscope process, one per line: Python's options, the module or script, global
#: options and the command.
_OURS: Final = re.compile(r"(-[^cm\n].*\n)*(-m\ninnoscope\.cli\.main|(.*/)?innoscope)\n(-.*\n)*(?P<name>.+)")
_TOP: Final = 20


class NotOurs(InnoscopeError):
    """The process exists, but is not part of Innoscope."""

    exit_code = ExitCode.WRONG_PROCESS


def find(command: str, proc: ProcFs) -> int:
    """Return the pid of the process running ``innoscope COMMAND``.

    Raise NoTarget if there is no such process, or if there are several.
    """
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
    """Return the subcommand of an Innoscope process.

    Raise NotOurs if it is another process, NoRights if it cannot be read, or NoSuchProcess if it has exited.
    """
    try:
        program, arguments = proc.exe(pid)[0], proc.cmdline(pid)[1:]
    except ProcessLookupError as error:
        raise NoSuchProcess(f"process {pid} does not exist", remedy="innoscope self-profile") from error
    except PermissionError as error:
        remedy = f"sudo innoscope self-profile --pid {pid}"
        raise NoRights(f"cannot read process {pid}: permission denied", remedy=remedy) from error
    match = _OURS.match("\n".join(arguments))
    if match is None or not Path(program).name.startswith("python"):
        raise NotOurs(
            f"cannot profile process {pid}: it is not an Innoscope process",
            remedy=f"for the stacks of a server: innoscope stacks --pid {pid}",
        )
    return match["name"]


def record(pid: int, seconds: float, options: list[str]) -> list[str]:
    """Run ``py-spy record`` and return the lines that it writes. Raise InnoscopeError if it fails."""
    program = shutil.which("py-spy", path=Path(sys.executable).parent) or shutil.which("py-spy")
    if program is None:
        raise InnoscopeError("py-spy is not installed", remedy=f"{sys.executable} -m pip install py-spy")
    with tempfile.TemporaryFile() as file:
        options += ["--duration", str(math.ceil(seconds)), "--output", f"/proc/self/fd/{file.fileno()}"]
        command = [program, "record", "--pid", str(pid), *options]
        done = subprocess.run(command, capture_output=True, check=False, pass_fds=[file.fileno()])
        if done.returncode:
            words = done.stderr.decode(errors="replace").partition("Stack backtrace:")[0].split()
            raise InnoscopeError(
                f"py-spy failed on process {pid}: {' '.join(words)}",
                remedy=f"sudo innoscope self-profile --pid {pid} --idle",
            )
        return file.read().decode(errors="replace").splitlines()


def table(process: str, folded: list[str]) -> list[str]:
    """Return the lines of a table with the functions that were most often the innermost one of a stack."""
    own: Counter[str] = Counter()
    total: Counter[str] = Counter()
    for line in folded:
        stack, _, count = line.rpartition(" ")
        functions = stack.split(";")
        own[functions[-1]] += int(count)
        total.update(dict.fromkeys(functions, int(count)))
    samples = own.total()
    if not samples:
        return [f"{process}: no thread ran; to include waiting threads: --idle"]
    rows = [
        f"{count / samples:6.1%}  {total[function] / samples:6.1%}  {function}"
        for function, count in own.most_common(_TOP)
    ]
    return [f"{process}: {samples:,} samples", "", "   own   total  function", *rows]
