"""The real command line, as a person runs it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

INNOSCOPE = str(Path(sys.executable).with_name("innoscope"))

#: No command of these tests may need longer, not even on a machine that is busy with other things.
DEADLINE_S = 60


def innoscope(*arguments: object, under: Sequence[str] = ()) -> subprocess.CompletedProcess[str]:
    """Run it to its end, ``under`` another command if given, and keep what it said."""
    return run([*under, INNOSCOPE, *map(str, arguments)])


def run(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Run a command without a terminal, and without leave to ask the network."""
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
    """Its exit code; on stderr ``innoscope: …`` with these words, the remedy indented below; no traceback."""
    said = result.stderr.splitlines()
    assert result.returncode == code, result.stderr
    assert [line for line in said if line.startswith("innoscope: ")] == said[:1], result.stderr
    assert all(line.startswith("  ") for line in said[1:]), result.stderr
    assert "Traceback" not in result.stderr
    assert all(word in said[0] for word in words), result.stderr
    if remedy:
        assert said[1:], f"no remedy: {result.stderr}"
