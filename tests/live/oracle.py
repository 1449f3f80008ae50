"""Read a process's stacks with gdb and eu-stack, which stop the process."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Final, NamedTuple

#: Timeout in seconds for gdb to dump a server with 300 MB of debug information on a busy machine.
_TIMEOUT_S: Final = 120

_IN_GDB: Final = Path(__file__).with_name("in_gdb.py")
_EU_THREAD: Final = re.compile(r"TID (\d+):")
_EU_FRAME: Final = re.compile(r"#\d+\s+0x([0-9a-f]+)(?: - 1)?(?:\s+(.+))?")
_EU_ENDED_EARLY: Final = re.compile(r"tid (\d+) at 0x")


class Frame(NamedTuple):
    """One function on a stack. gdb also reports inlined functions; eu-stack does not."""

    pc: int
    name: str | None
    inlined: bool = False


class Stacks(NamedTuple):
    """Frames by thread id, innermost first. ``cut`` lists the threads that were not unwound to their root."""

    by_thread: dict[int, list[Frame]]
    cut: frozenset[int]


def gdb(pid: int, executable: Path, root: Path) -> Stacks:
    """Return gdb's frames. gdb looks for files below ``root``, the root directory of the process."""
    command = [
        "gdb", "-batch", "-nx", "-iex", f"set sysroot {root}", "-iex", "set auto-load off",
        "-iex", "set debuginfod enabled off", "-ex", "set backtrace past-main on",
        "-p", str(pid), "-x", str(_IN_GDB), str(executable),
    ]  # fmt: skip
    output = _run(command).stdout
    dump = json.loads(next(line for line in output.splitlines() if line.startswith('{"')))
    return Stacks({int(tid): [Frame(*frame) for frame in stack] for tid, stack in dump.items()}, frozenset())


def eu_stack(pid: int) -> Stacks:
    """Return the frames of eu-stack (elfutils)."""
    result = _run(["eu-stack", "-n", "0", "-p", str(pid)])
    frames: dict[int, list[Frame]] = {}
    stack: list[Frame] = []
    for line in result.stdout.splitlines():
        if thread := _EU_THREAD.match(line):
            stack = frames[int(thread[1])] = []
        elif frame := _EU_FRAME.match(line):
            stack.append(Frame(int(frame[1], 16), frame[2]))
    return Stacks(frames, frozenset(map(int, _EU_ENDED_EARLY.findall(result.stderr))))


def _run(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False, stdin=subprocess.DEVNULL
    )
