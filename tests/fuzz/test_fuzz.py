"""Run every fuzz target for a short time; `make fuzz` runs them for longer."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest

from fuzz.__main__ import default_folder, prepare, remove_outdated_seeds, run, seeds_folder
from fuzz.targets import PYTHON, RUST, TooLarge, within_limits
from scale import count, few

_TESTS = Path(__file__).resolve().parents[1]
_CORE = _TESTS.parent / "agent" / "native" / "Cargo.toml"
_SECONDS = count(quick=3, full=5)
#: The targets of the quick suite, which are in Python, because compiling the instrumented core takes minutes.
_QUICK = ("http", "sensor", "catalogs", "snapshots", "incident")
#: Minimum executions per second of CPU time. A run with fewer has spent most of its time in the harness.
_LEAST_EXECUTIONS = 60


@pytest.mark.timeout(600)
@pytest.mark.parametrize("target", few([*RUST, *PYTHON], *_QUICK, reason="compiling the core takes minutes"))
def test_no_input_crashes_or_exceeds_its_limits(target: str, tmp_path: Path) -> None:
    """Run the target from a small separate process, with a new corpus.

    A child process inherits the peak memory of its parent even across execve, and pytest's peak may exceed
    libFuzzer's limit. Replaying the corpora of earlier runs may take a minute.
    """
    done = subprocess.run(
        [sys.executable, "-m", "fuzz", "--seconds", str(_SECONDS), "--corpora", tmp_path, target],
        env=os.environ | {"PYTHONPATH": str(_TESTS)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    found = re.search(r"([\d,]+) executions in \d+ s \(([\d.]+) s of CPU\)", done.stdout)
    assert found is not None
    assert int(found[1].replace(",", "")) >= _LEAST_EXECUTIONS * float(found[2])


@pytest.mark.timeout(600)
def test_mutated_seeds_exceed_no_limit_of_the_core() -> None:
    """Run the targets `elf`, `unwind` and `pack` in a normal build of the core, without coverage guidance."""
    folder = default_folder()
    prepare(folder, ())
    done = subprocess.run(
        ["cargo", "test", "--quiet", "--release", "--no-default-features", "--manifest-path", _CORE,
         "--test", "mutated_seeds", "--", "--ignored"],
        env=os.environ | {"INNOSCOPE_FUZZ_SEEDS": str(seeds_folder(folder))},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout


def _allocate(mib: int) -> None:
    _ = b"x" * (mib << 20)


@pytest.mark.parametrize(("mib", "fits"), [(40, True), (100, False)])
def test_memory_of_an_input_is_its_growth(mib: int, fits: bool) -> None:
    """Check that neither the size of the process nor earlier inputs matter."""
    kept = b"x" * (200 << 20)
    for _ in range(3):
        with nullcontext() if fits else pytest.raises(TooLarge, match="MiB of memory"):
            within_limits(lambda _: _allocate(mib), b"")
    del kept


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
