"""Run a program quietly, and show what it said only if it failed."""

from __future__ import annotations

import shlex
import subprocess
from typing import TYPE_CHECKING

from servers.errors import ServerError

if TYPE_CHECKING:
    from pathlib import Path

#: The environment of a server: nothing of the tester's own gets in.
ENVIRONMENT = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C", "HOME": "/nonexistent"}

#: Seconds: the largest artefact is 150 MB, and a client that hangs must not hang the tests.
_TIMEOUT = 900


def run(command: list[str], cwd: Path) -> str:
    """Standard output of the command; its whole output goes into the error if it fails."""
    try:
        result = subprocess.run(
            command, cwd=cwd, capture_output=True, text=True, timeout=_TIMEOUT, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise ServerError(f"no end after {_TIMEOUT} s: {shlex.join(command)}") from error
    if result.returncode != 0:
        said = (result.stdout + result.stderr).strip()
        raise ServerError(f"exit {result.returncode}: {shlex.join(command)}\n{said}")
    return result.stdout
