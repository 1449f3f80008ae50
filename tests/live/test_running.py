"""Threads on a CPU are shown as they are now, and what is not of now says so."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from innoscope.sampling.model import Trust
from live import figures
from servers import NAMES, Keeper

if TYPE_CHECKING:
    from collections.abc import Iterator

    from live.observe import Observatory

FLOOR = 0.95
SPINNERS = 3
LOOKS = 400

#: Running threads that all looks together must have met, or the share says nothing.
ENOUGH = 10


@pytest.mark.parametrize("load", ["cpu", "burn"])
@pytest.mark.parametrize("name", NAMES)
def test_threads_on_a_cpu_are_fresh_and_whole(observatory: Observatory, name: str, load: str) -> None:
    """``cpu`` comes back to its client between two statements, ``burn`` never."""
    seen = observatory.observe(name, load)

    fresh, running = seen.running[Trust.ON_CPU], seen.running.total()
    figures.record(
        "running", f"{name}/{load}", f"{figures.share(fresh, running)} in {seen.looks} looks",
        fresh=fresh, running=running, looks=seen.looks, trust=dict(seen.running),
    )  # fmt: skip
    assert seen.looks == 100
    assert running >= ENOUGH
    assert fresh >= FLOOR * running, seen.shown(set(seen.running) - {Trust.ON_CPU})


@pytest.fixture(scope="module")
def spinner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[int, Path]]:
    """The process id of threads that spin, and the file by which they are told where to."""
    folder = tmp_path_factory.mktemp("spinner")
    source = Path(__file__).with_name("spinner.cpp")
    subprocess.run(["g++", "-O1", "-pthread", "-o", folder / "spinner", source], check=True)
    shared = folder / "shared"
    shared.write_bytes(bytes(4096))
    keeper = Keeper()
    process = subprocess.Popen([folder / "spinner", shared, str(SPINNERS)], start_new_session=True)
    keeper.watch(process.pid)
    try:
        deadline = time.monotonic() + 10
        while shared.read_bytes()[4] != 1:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        yield process.pid, shared
    finally:
        process.kill()
        process.wait()
        keeper.close()


def _judge(spinner: tuple[int, Path], *more: str) -> Counter[str]:
    script = Path(__file__).with_name("spin_main.py")
    pid, shared = spinner
    command = [sys.executable, str(script), str(pid), str(shared), str(SPINNERS), str(LOOKS), *more]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=os.environ)
    assert result.returncode == 0, result.stderr
    return Counter(json.loads(result.stdout))


def test_what_is_not_marked_stale_is_fresh(spinner: tuple[int, Path]) -> None:
    """Threads change their function without entering the kernel, so what the kernel saved is of before.

    A stack that shows the function they have left is an old one: at most ``stale`` ones may.
    """
    seen = _judge(spinner)

    believed = seen["exact right"] + seen["on_cpu right"]
    wrong = seen["exact wrong"] + seen["on_cpu wrong"]
    figures.record("fresh", "spinner", f"{figures.share(believed, believed + wrong)} ({dict(seen)})", **seen)
    assert seen["on_cpu right"] >= LOOKS // 10
    assert wrong == 0, seen
    stale = sum(count for what, count in seen.items() if not what.startswith(("exact", "on_cpu")))
    assert stale <= (1 - FLOOR) * (stale + seen["on_cpu right"]), seen


def test_without_samples_they_are_stale_and_marked(spinner: tuple[int, Path]) -> None:
    """The same with perf events denied: shows that old stacks do occur here, and that each is marked."""
    seen = _judge(spinner, "deny")

    figures.record("fresh", "spinner without perf events", f"{dict(seen)}", **seen)
    assert seen["stale wrong"] > 0
    assert seen["on_cpu right"] == seen["on_cpu wrong"] == seen["exact wrong"] == 0, seen
