"""Running one command and measuring it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.children import ChildError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_RUNNER = Path(__file__).with_name("runner.py")

#: Seconds; the slowest tool takes 14 on an idle machine.
_BOUND = 300

#: Seconds that a command which is told to end may take.
_PATIENCE = 10


@dataclass(frozen=True, slots=True)
class Run:
    """What one run of a command took."""

    wall_s: float
    cpu_s: float
    rss_mb: float  #: its peak, or that of the largest of its children
    anon_mb: float  #: the peak of the command's own process without what it maps from files
    output: str


def measured(command: Sequence[str], environment: Mapping[str, str]) -> Run:
    """Run it to its end. Raises ChildError, with what it said, if it was killed or printed nothing."""
    with tempfile.TemporaryDirectory(prefix="innoscope-bench-") as folder:
        output, errors = Path(folder, "output"), Path(folder, "errors")
        told = _told(
            [sys.executable, "-I", "-S", str(_RUNNER), str(output), str(errors), str(_BOUND), *command],
            {**os.environ, **environment},
        )
        code, text = told.pop("exit"), output.read_text(errors="replace")
        if code < 0 or not text:
            said = errors.read_text(errors="replace").strip()[-500:]
            raise ChildError(f"{' '.join(command)} ended with {code} and {len(text)} bytes of output: {said}")
    return Run(output=text, **told)


def _told(command: list[str], environment: dict[str, str]) -> dict[str, Any]:
    """The runner's line. Its input stays open meanwhile: closing it, as our end does, ends the command."""
    runner = subprocess.Popen(
        command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
    )
    with runner:
        assert runner.stdin is not None
        assert runner.stdout is not None
        try:
            line = runner.stdout.readline()
        except BaseException:
            runner.stdin.close()
            runner.wait(_PATIENCE)
            raise
    if not line:
        raise ChildError(f"{' '.join(command)} ended with {runner.returncode}")
    told: dict[str, Any] = json.loads(line)
    return told
