"""Run the installed ``innoscope`` command."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

INNOSCOPE = str(Path(sys.executable).with_name("innoscope"))

#: Time limit of every command in seconds, generous enough for a busy machine.
DEADLINE_S = 60


def innoscope(*arguments: object, under: Sequence[str] = ()) -> subprocess.CompletedProcess[str]:
    """Run ``innoscope`` to its end, optionally ``under`` another command, and capture its output."""
    return run([*under, INNOSCOPE, *map(str, arguments)])


def run(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Run a command without a terminal and without debuginfod."""
    return subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
        env={name: value for name, value in os.environ.items() if name != "DEBUGINFOD_URLS"},
    )


def assert_one_clear_error(
    result: subprocess.CompletedProcess[str], code: int, *words: str, remedy: bool = True
) -> None:
    """Check the exit code, and that stderr is one line ``innoscope: …`` with ``words``, then a remedy."""
    lines = result.stderr.splitlines()
    assert result.returncode == code, result.stderr
    assert [line for line in lines if line.startswith("innoscope: ")] == lines[:1], result.stderr
    assert all(line.startswith("  ") for line in lines[1:]), result.stderr
    assert "Traceback" not in result.stderr
    assert all(word in lines[0] for word in words), result.stderr
    if remedy:
        assert lines[1:], f"no remedy: {result.stderr}"
