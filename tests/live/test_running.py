"""Test that snapshots show the current stacks of running threads, or mark the stacks as stale."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from innoscope.sampling.model import Trust
from servers import NAMES, Keeper
from waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from live.observe import Observatory

FLOOR = 0.95
SPINNERS = 3
SNAPSHOTS = 400

#: Minimum number of running threads in all snapshots; with fewer, the measured share is not meaningful.
ENOUGH = 10


@pytest.mark.parametrize("load", ["cpu", "burn"])
@pytest.mark.parametrize("name", NAMES)
def test_running_threads_have_fresh_and_complete_stacks(
    observatory: Observatory, name: str, load: str
) -> None:
    """Check running threads under short statements (``cpu``) and under an endless statement (``burn``)."""
    seen = observatory.observe(name, load)

    fresh, running = seen.running[Trust.ON_CPU], seen.running.total()
    assert seen.snapshots == 100
    assert running >= ENOUGH
    assert fresh >= FLOOR * running, seen.shown(set(seen.running) - {Trust.ON_CPU})


@pytest.fixture(scope="module")
def spinner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[int, Path]]:
    """Yield the pid of a process with spinning threads, and the shared file that selects their function."""
    folder = tmp_path_factory.mktemp("spinner")
    source = Path(__file__).with_name("spinner.cpp")
    subprocess.run(["g++", "-O1", "-pthread", "-o", folder / "spinner", source], check=True)
    shared = folder / "shared"
    shared.write_bytes(bytes(4096))
    keeper = Keeper()
    process = subprocess.Popen([folder / "spinner", shared, str(SPINNERS)], start_new_session=True)
    keeper.watch(process.pid)
    try:
        until(lambda: shared.read_bytes()[4] == 1)
        yield process.pid, shared
    finally:
        process.kill()
        process.wait()
        keeper.close()


def _judge(spinner: tuple[int, Path], *more: str) -> Counter[str]:
    script = Path(__file__).with_name("spin_main.py")
    pid, shared = spinner
    command = [sys.executable, str(script), str(pid), str(shared), str(SPINNERS), str(SNAPSHOTS), *more]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=os.environ)
    assert result.returncode == 0, result.stderr
    return Counter(json.loads(result.stdout))


def test_stacks_not_marked_stale_are_fresh(spinner: tuple[int, Path]) -> None:
    """Make threads switch functions in user space, so that the registers saved by the kernel are outdated.

    Only a stack marked ``stale`` may show a function that the thread has already left.
    """
    seen = _judge(spinner)

    wrong = seen["exact wrong"] + seen["on_cpu wrong"]
    assert seen["on_cpu right"] >= SNAPSHOTS // 10
    assert wrong == 0, seen
    stale = sum(count for what, count in seen.items() if not what.startswith(("exact", "on_cpu")))
    assert stale <= (1 - FLOOR) * (stale + seen["on_cpu right"]), seen


def test_running_threads_are_marked_stale_without_perf_events(spinner: tuple[int, Path]) -> None:
    """Check that old stacks do occur if perf events are denied, and that each one is marked."""
    seen = _judge(spinner, "deny")

    assert seen["stale wrong"] > 0
    assert seen["on_cpu right"] == seen["on_cpu wrong"] == seen["exact wrong"] == 0, seen
