"""A command on a terminal of its own, with somebody who types."""

from __future__ import annotations

import os
import pty
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING

from safety.command import DEADLINE_S, INNOSCOPE

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, slots=True)
class Said:
    """The exit code and everything that the terminal showed."""

    code: int
    said: str


def on_terminal(*arguments: object, under: Sequence[str] = (), answer: str) -> Said:
    """Run innoscope with standard input, output and error on a terminal that already holds ``answer``."""
    ours, theirs = pty.openpty()
    try:
        os.write(ours, answer.encode())
        process = subprocess.Popen(
            [*under, INNOSCOPE, *map(str, arguments)],
            stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True,
        )  # fmt: skip
        os.close(theirs)
        shown = _all(ours)
        return Said(process.wait(DEADLINE_S), shown)
    finally:
        os.close(ours)


def _all(descriptor: int) -> str:
    """Read until the last process has closed the terminal, which the kernel reports as EIO."""
    shown = b""
    try:
        while piece := os.read(descriptor, 1 << 16):
            shown += piece
    except OSError:
        pass
    return shown.decode(errors="replace")
