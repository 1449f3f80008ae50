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

#: Seconds; the slowest tool takes 14 on an idle machine.
_BOUND = 300

#: Seconds that a command may take to end.
_PATIENCE = 10


@dataclass(frozen=True, slots=True)
class Run:
    """The cost and output of one run of a command."""

    wall_s: float
    cpu_s: float
    rss_mb: float  #: its peak, or that of the largest of its helpers
    anon_mb: float  #: the peak of the command's own process without what it maps from files
    output: str


def measured(command: Sequence[str], environment: Mapping[str, str]) -> Run:
    """Run it to its end. Raises HelperError, with its messages, if it was killed or printed nothing."""
    with tempfile.TemporaryDirectory(prefix="innoscope-bench-") as folder:
        output, errors = Path(folder, "output"), Path(folder, "errors")
        cost = _measured(
            [sys.executable, "-I", "-S", str(_RUNNER), str(output), str(errors), str(_BOUND), *command],
            {**os.environ, **environment},
        )
        code, text = cost.pop("exit"), output.read_text(errors="replace")
        if code < 0 or not text:
            messages = errors.read_text(errors="replace").strip()[-500:]
            ended = f"ended with {code} and {len(text)} bytes of output"
            raise HelperError(f"{' '.join(command)} {ended}: {messages}")
    return Run(output=text, **cost)


def _measured(command: list[str], environment: dict[str, str]) -> dict[str, Any]:
    """Return the runner's result. Closing its input, as our exit does, ends the command."""
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
        raise HelperError(f"{' '.join(command)} ended with {runner.returncode}")
    cost: dict[str, Any] = json.loads(line)
    return cost
