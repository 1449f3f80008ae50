"""Which processes of this host are Innoscope's own: the only ones that may be profiled."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from innoscope.errors import InnoscopeError, NoRights, NoSuchProcess
from innoscope.target.proc import ProcFs

_PYTHON: Final = re.compile(r"python[\w.]*")
_SCRIPT: Final = "innoscope"
_MODULE: Final = "innoscope.cli.main"
#: Options of Python itself whose next word is theirs.
_WITH_VALUE: Final = ("-W", "-X")


class NotOurs(InnoscopeError):
    """The process is there and is not one of Innoscope's."""

    exit_code = 5


@dataclass(frozen=True, slots=True)
class Ours:
    """A process that runs ``innoscope COMMAND``."""

    pid: int
    command: str


def find(command: str, pid: int | None = None, proc: ProcFs | None = None) -> Ours:
    """The process with that pid, whatever its command, else the only one that runs ``command``.

    Raises NotOurs, NoRights or NoSuchProcess.
    """
    proc = proc or ProcFs()
    if pid is not None:
        return _named(proc, pid)
    found, hidden = _all(proc, command)
    if len(found) == 1:
        return found[0]
    if found:
        pids = ", ".join(str(one.pid) for one in found)
        raise NoSuchProcess(
            f"{len(found)} processes run innoscope {command}: {pids}", remedy="say which one: --pid PID"
        )
    start = f"start one: sudo innoscope {command}"
    if hidden:
        start += f"\nor see those of other users: sudo innoscope self-profile{_flag(command)}"
    raise NoSuchProcess(f"no innoscope {command} runs on this host", remedy=start)


def _flag(command: str) -> str:
    return " --sensor" if command == "sensor" else ""


def _named(proc: ProcFs, pid: int) -> Ours:
    try:
        command = command_of(proc, pid)
        name = proc.stat(pid).comm
    except ProcessLookupError as error:
        raise NoSuchProcess(f"there is no process {pid}", remedy="innoscope self-profile") from error
    except PermissionError as error:
        raise NoRights(
            f"no right to look at process {pid}", remedy=f"as root: sudo innoscope self-profile --pid {pid}"
        ) from error
    if command is None:
        raise NotOurs(
            f"process {pid} ({name}) is not one of Innoscope's own, and only those are profiled",
            remedy="a server's stacks: innoscope stacks --pid PID",
        )
    return Ours(pid, command)


def _all(proc: ProcFs, command: str) -> tuple[list[Ours], bool]:
    """Those that run ``command``, and whether there were processes that we may not look at."""
    found, hidden = [], False
    for pid in proc.pids():
        try:
            if command_of(proc, pid) == command:
                found.append(Ours(pid, command))
        except ProcessLookupError:  # ended in the meantime, or a kernel thread
            continue
        except PermissionError:
            hidden = True
    return found, hidden


def command_of(proc: ProcFs, pid: int) -> str | None:
    """``agent`` for Python that runs ``innoscope agent …``; None for every other program, above all a server.

    Raises ProcessLookupError or PermissionError.
    """
    if not _PYTHON.fullmatch(proc.exe(pid)[0].rpartition("/")[2]):
        return None
    words = iter(proc.cmdline(pid)[1:])
    for word in words:
        if word in _WITH_VALUE:
            next(words, None)
        elif word == "-c":
            return None
        elif word == "-m":
            ours = next(words, "") == _MODULE
            break
        elif not word.startswith("-"):
            ours = word.rpartition("/")[2] == _SCRIPT
            break
    else:
        return None
    return next((word for word in words if not word.startswith("-")), None) if ours else None
