"""A short run of every fuzz target; `make fuzz` is the long one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fuzz.__main__ import default_folder, prepare, run
from fuzz.targets import PYTHON, RUST

if TYPE_CHECKING:
    from pathlib import Path

_SECONDS = 5
#: Fewer would mean that the harness, not the code under test, is being run.
_LEAST_EXECUTIONS = 100


@pytest.fixture(scope="module")
def folder() -> Path:
    """Seeds and binaries, built once and kept outside the tree."""
    prepare(default_folder())
    return default_folder()


@pytest.mark.timeout(600)
@pytest.mark.parametrize("target", [*RUST, *PYTHON])
def test_no_input_crashes_or_exceeds_its_limits(folder: Path, target: str) -> None:
    result = run(folder, target, _SECONDS)
    assert result.report is None, result.report
    assert result.executions >= _LEAST_EXECUTIONS
