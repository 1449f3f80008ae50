"""Run a program; show its output only if it fails."""

from __future__ import annotations

import shlex
import subprocess
from typing import TYPE_CHECKING

from servers.errors import ServerError

if TYPE_CHECKING:
    from pathlib import Path

#: The environment of a server, which does not depend on the user's environment.
ENVIRONMENT = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C", "HOME": "/nonexistent"}

#: Timeout for a command, in seconds, because clients can hang. Downloading 150 MB takes less time.
_TIMEOUT = 900


def run(command: list[str], cwd: Path) -> str:
    """Return the command's standard output. Raise ServerError, with the whole output, if it fails."""
    try:
        result = subprocess.run(
            command, cwd=cwd, capture_output=True, text=True, timeout=_TIMEOUT, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise ServerError(f"no end after {_TIMEOUT} s: {shlex.join(command)}") from error
    if result.returncode != 0:
        output = (result.stdout + result.stderr).strip()
        raise ServerError(f"exit {result.returncode}: {shlex.join(command)}\n{output}")
    return result.stdout
