"""Run every fuzz target for a short time; `make fuzz` runs them for longer."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from fuzz.__main__ import remove_outdated_seeds, run
from fuzz.targets import PYTHON, RUST
from scale import count

_TESTS = Path(__file__).resolve().parents[1]
_SECONDS = count(quick=1, full=5)
#: Minimum executions for each second of CPU time. A run with fewer has spent most of its time in the harness.
_LEAST_EXECUTIONS = 60


@pytest.mark.timeout(600)
@pytest.mark.parametrize("target", [*RUST, *PYTHON])
def test_no_input_crashes_or_exceeds_its_limits(target: str) -> None:
    """Run the target from a small separate process.

    A child process inherits the peak memory of its parent even across execve, and pytest's peak may exceed
    libFuzzer's limit.
    """
    done = subprocess.run(
        [sys.executable, "-m", "fuzz", "--seconds", str(_SECONDS), target],
        env=os.environ | {"PYTHONPATH": str(_TESTS)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    found = re.search(r"([\d,]+) executions in \d+ s \(([\d.]+) s of CPU\)", done.stdout)
    assert found is not None
    assert int(found[1].replace(",", "")) >= _LEAST_EXECUTIONS * float(found[2])


def test_a_run_without_executions_has_failed(tmp_path: Path) -> None:
    result = run(tmp_path, "http", 1)  # no seeds
    assert result.executions == 0
    assert result.report


def test_seeds_that_another_run_may_be_using_are_not_removed(tmp_path: Path) -> None:
    for age, name in enumerate(("seeds-current", "seeds-other-run", "seeds-outdated")):
        (tmp_path / name).mkdir()
        os.utime(tmp_path / name, (1_000 - age, 1_000 - age))
    remove_outdated_seeds(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["seeds-current", "seeds-other-run"]
