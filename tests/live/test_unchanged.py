"""Test that snapshots reuse the stacks of threads that have not run.

Also test that a thread that has run is never shown with its old stack.
"""

from __future__ import annotations

import os
import random
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import snapshot_methods
from innoscope._native import Process
from innoscope.sampling.engine import Engine
from innoscope.target.discover import find_one
from servers import Keeper, Server
from waiting import until_asleep
from workloads import Idle, RowLock

if TYPE_CHECKING:
    from collections.abc import Iterator

    from innoscope.sampling.model import Snapshot

THREADS = 40
STEPS = 200
SNAPSHOTS = 30


class Sleepers:
    """Threads that sleep in ``asleep_in_a`` or ``asleep_in_b``, as the test chooses."""

    def __init__(self, program: Path) -> None:
        answers, answer = os.pipe()
        pipes = [os.pipe() for _ in range(THREADS)]
        commands = [read for read, _ in pipes]
        self._process = subprocess.Popen(
            [program, *map(str, (answer, *commands))], pass_fds=(answer, *commands), start_new_session=True
        )
        self._commands = [write for _, write in pipes]
        self._answers = answers
        for descriptor in (answer, *commands):
            os.close(descriptor)
        self.states = ["a"] * THREADS
        self._answered(THREADS)

    @property
    def pid(self) -> int:
        return self._process.pid

    def tell(self, index: int, command: str) -> None:
        """Make a thread enter a function, and wait for its reply; ``q`` makes it exit without a reply."""
        os.write(self._commands[index], command.encode())
        self.states[index] = command
        if command != "q":
            self._answered(1)

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        for descriptor in (*self._commands, self._answers):
            os.close(descriptor)

    def _answered(self, number: int) -> None:
        while number:
            number -= len(os.read(self._answers, number))


@pytest.fixture
def sleepers(tmp_path: Path) -> Iterator[Sleepers]:
    source = Path(__file__).with_name("sleeper.cpp")
    subprocess.run(["g++", "-O1", "-pthread", "-o", tmp_path / "sleeper", source], check=True)
    keeper = Keeper()
    sleepers = Sleepers(tmp_path / "sleeper")
    keeper.watch(sleepers.pid)
    try:
        yield sleepers
    finally:
        sleepers.close()
        keeper.close()


def _seen(process: Process) -> list[str]:
    """Take a snapshot; return the state (a or b) of each thread, in order of creation."""
    snapshot = process.take_snapshot()
    stacks = {number: {frame.function for frame in frames} for number, frames in snapshot.stacks.items()}
    found = []
    for thread in sorted(snapshot.threads, key=lambda thread: thread.tid):
        states = [state for state in "ab" if f"asleep_in_{state}" in stacks[thread.stack]]
        if states:
            assert thread.trust in ("exact", "inferred", "on_cpu"), (thread.tid, thread.trust)
            found += states
    return found


@pytest.mark.parametrize("method", snapshot_methods.STOPPING_NOTHING)
def test_thread_that_ran_has_its_current_stack(sleepers: Sleepers, method: str) -> None:
    process = Process(sleepers.pid, method=method)
    draw = random.Random(20261121)  # noqa: S311
    assert _seen(process) == sleepers.states
    for _ in range(STEPS):
        for index in draw.sample(range(THREADS), draw.randrange(4)):
            sleepers.tell(index, draw.choice("ab"))
        assert _seen(process) == sleepers.states


@pytest.mark.parametrize("method", snapshot_methods.STOPPING_NOTHING)
def test_ended_threads_disappear(sleepers: Sleepers, method: str) -> None:
    process = Process(sleepers.pid, method=method)
    assert len(_seen(process)) == THREADS
    for index in range(0, THREADS, 2):
        sleepers.tell(index, "q")
    left = [state for state in sleepers.states if state != "q"]
    while len(_seen(process)) > len(left):
        pass  # an alarm signal ends the sleepers' process, which limits the duration of this loop
    assert _seen(process) == left


@pytest.mark.parametrize("method", snapshot_methods.STOPPING_NOTHING)
@pytest.mark.parametrize("name", ["mysql-5.6.24", "mysql-9.7", "mariadb-11.4.5"])
def test_later_snapshots_equal_a_first_one(name: str, method: str) -> None:
    with Server(name) as server, Idle(server, 30), RowLock(server, 10):
        target = find_one(server.pid)
        engine = Engine(target, method=method)
        until_asleep(server.pid)
        for _ in range(SNAPSHOTS):
            late = _at_rest(engine.take_snapshot())
            assert late == _at_rest(Engine(target, method=method).take_snapshot())
            assert len(late) >= 40


def _at_rest(snapshot: Snapshot) -> dict[int, tuple[str, tuple[str, ...]]]:
    """Return the wait class and the stack of each of the workload's threads, which do not run."""
    return {
        thread.tid: (thread.wait, tuple(frame.label for frame in thread.frames))
        for thread in snapshot.threads
        if thread.wait in ("idle", "row_lock")
    }
