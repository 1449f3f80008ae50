"""Test that the server keeps running and responding, and is not traced, if `stacks` is killed with SIGKILL.

Half of the kills happen during the first snapshot: a gdb or eu-stack that is killed at that time leaves the
server stopped. The times are random, with a fixed seed.
"""

from __future__ import annotations

import itertools
import os
import random
import signal
import subprocess
import time
from typing import TYPE_CHECKING

import pytest

import snapshot_methods
from safety.command import INNOSCOPE, innoscope
from safety.leftovers import orphans
from safety.well import assert_well, statuses
from scale import count
from servers import Server
from workloads import Idle, RowLock

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Number of kills for each method.
KILLS = count(quick=4, full=200)
SEED = 20261121
SNAPSHOTS = 4  # enough for the tool to still be running at the time of the kill
HELD_KILLS = count(quick=2, full=10)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server("mysql-5.6.24") as server, Idle(server, 280), RowLock(server, 20):
        yield server


def _arguments(pid: int, method: str, snapshots: int) -> list[str]:
    several = ["--count", str(snapshots), "--interval", "0.01"] if snapshots > 1 else []
    return ["stacks", "--pid", str(pid), "--method", method, *several]


def _start(pid: int, method: str, snapshots: int = SNAPSHOTS) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [INNOSCOPE, *_arguments(pid, method, snapshots)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def _duration(pid: int, method: str, snapshots: int) -> float:
    """Return the duration in seconds of the fastest of several undisturbed runs."""
    taken = []
    for _ in range(count(quick=2, full=4)):
        began = time.monotonic()
        result = innoscope(*_arguments(pid, method, snapshots))
        assert result.returncode == 0, result.stderr
        taken.append(time.monotonic() - began)
    return min(taken)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("method", snapshot_methods.ALL)
def test_the_server_runs_after_a_kill_at_a_random_moment(server: Server, method: str) -> None:
    one, all_of_them = (_duration(server.pid, method, snapshots) for snapshots in (1, SNAPSHOTS))
    draw = random.Random(SEED)  # noqa: S311
    killed = 0
    for number in itertools.count():  # a run that ends before its kill does not count
        if killed == KILLS:
            break
        moment = draw.uniform(0, one if number % 2 else all_of_them)
        process = _start(server.pid, method)
        try:
            process.wait(moment)
        except subprocess.TimeoutExpired:
            process.kill()
            killed += process.wait() == -signal.SIGKILL
        assert_well(server)
    assert orphans() == set()


def test_the_server_runs_after_a_kill_while_a_thread_is_traced(server: Server) -> None:
    """Suspend the tool while it traces a thread, the worst time for the ptrace method; then kill the tool."""
    held = 0
    draw = random.Random(SEED)  # noqa: S311
    deadline = time.monotonic() + 120
    while held < HELD_KILLS and time.monotonic() < deadline:
        process = _start(server.pid, "ptrace", snapshots=1000)
        try:
            _until_traced(server.pid, process)
            time.sleep(draw.uniform(0, 0.01))
            process.send_signal(signal.SIGSTOP)
            os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
            held += any(tracer for _, _, tracer in statuses(server.pid))
        finally:
            process.kill()
            process.wait()
        assert_well(server)
    assert held >= HELD_KILLS


def _until_traced(pid: int, process: subprocess.Popen[bytes]) -> None:
    """Wait until a thread of the server has a tracer."""
    deadline = time.monotonic() + 30
    while not any(tracer for _, _, tracer in statuses(pid)):
        assert process.poll() is None
        assert time.monotonic() < deadline
