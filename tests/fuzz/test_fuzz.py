"""A short run of every fuzz target; `make fuzz` is the long one."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from fuzz.targets import PYTHON, RUST
from scale import count

_TESTS = Path(__file__).resolve().parents[1]
_SECONDS = count(quick=1, full=5)
#: Fewer would mean that the harness, not the code under test, is being run.
_LEAST_EXECUTIONS = 100


@pytest.mark.timeout(600)
@pytest.mark.parametrize("target", [*RUST, *PYTHON])
def test_no_input_crashes_or_exceeds_its_limits(target: str) -> None:
    """As a command: a target started by pytest itself would begin with pytest's own peak of memory.

    At execve the kernel keeps the peak of the process that forked, and libFuzzer's limit is for the peak.
    """
    done = subprocess.run(
        [sys.executable, "-m", "fuzz", "--seconds", str(_SECONDS), target],
        env=os.environ | {"PYTHONPATH": str(_TESTS)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    said = re.search(r"([\d,]+) executions", done.stdout)
    assert said is not None
    assert int(said[1].replace(",", "")) >= _LEAST_EXECUTIONS
