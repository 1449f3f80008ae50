"""Run one command and measure it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.helper_process import HelperError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_RUNNER = Path(__file__).with_name("command_process.py")

#: Maximum seconds that a command may take; the slowest tool takes 14 s on an idle machine.
_BOUND = 300

#: Seconds within which a command must exit after the benchmark is interrupted.
_PATIENCE = 10


@dataclass(frozen=True, slots=True)
class Run:
    """The cost and output of one run of a command."""

    wall_s: float
    cpu_s: float
    rss_mb: float  #: peak of the command, or of its largest child process
    anon_mb: float  #: peak of the command's own process, without mapped files
    output: str


def measured(command: Sequence[str], environment: Mapping[str, str]) -> Run:
    """Run a command until it exits. Raise HelperError if the command was killed or printed nothing."""
    with tempfile.TemporaryDirectory(prefix="innoscope-bench-") as folder:
        output, errors = Path(folder, "output"), Path(folder, "errors")
        cost = _measured(
            [sys.executable, "-I", "-S", str(_RUNNER), str(output), str(errors), str(_BOUND), *command],
            {**os.environ, **environment},
        )
        code, text = cost.pop("exit"), output.read_text(errors="replace")
        if code < 0 or not text:
            messages = errors.read_text(errors="replace").strip()[-500:]
            ended = f"exited with {code} and {len(text)} bytes of output"
            raise HelperError(f"{' '.join(command)} {ended}: {messages}")
    return Run(output=text, **cost)


def _measured(command: list[str], environment: dict[str, str]) -> dict[str, Any]:
    """Run command_process and return its result. If this process is interrupted, end the command."""
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
        raise HelperError(f"{' '.join(command)} exited with {runner.returncode}")
    cost: dict[str, Any] = json.loads(line)
    return cost
