"""Kill `stacks` with SIGKILL at any moment: the server runs, untraced, and answers.

Half of the moments are early: from the start of the program to the end of its first look, which is when gdb
and eu-stack leave a server dead. They are drawn from a fixed seed.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

from safety.command import INNOSCOPE, innoscope
from safety.leftovers import orphans
from safety.well import assert_well, statuses
from scale import count
from servers import Server
from workloads import Idle, RowLock

if TYPE_CHECKING:
    from collections.abc import Iterator

#: For each method.
KILLS = count(quick=4, full=200)
SEED = 20261121
LOOKS = 4  # of a run that is left alone: time enough to be killed in
HELD_KILLS = count(quick=2, full=10)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server("mysql-5.6.24") as server, Idle(server, 280), RowLock(server, 20):
        yield server


@dataclass
class Tally:
    """How the runs ended."""

    in_flight: int = 0
    ended_before: int = 0
    seconds: list[float] = field(default_factory=list)


def _arguments(pid: int, method: str, looks: int) -> list[str]:
    several = ["--count", str(looks), "--interval", "0.01"] if looks > 1 else []
    return ["stacks", "--pid", str(pid), "--method", method, *several]


def _start(pid: int, method: str, looks: int = LOOKS) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [INNOSCOPE, *_arguments(pid, method, looks)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def _duration(pid: int, method: str, looks: int) -> float:
    """Seconds of a run that is left alone, the shortest of several."""
    taken = []
    for _ in range(count(quick=2, full=4)):
        began = time.monotonic()
        result = innoscope(*_arguments(pid, method, looks))
        assert result.returncode == 0, result.stderr
        taken.append(time.monotonic() - began)
    return min(taken)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("method", ["bpf", "ptrace"])
def test_killed_at_random_moments(server: Server, method: str) -> None:
    one, all_of_them = (_duration(server.pid, method, looks) for looks in (1, LOOKS))
    draw = random.Random(SEED)  # noqa: S311
    tally = Tally()
    for number in range(2 * KILLS):  # a run that ended before its moment does not count
        if tally.in_flight == KILLS:
            break
        moment = draw.uniform(0, one if number % 2 else all_of_them)
        process = _start(server.pid, method)
        try:
            process.wait(moment)
            tally.ended_before += 1
        except subprocess.TimeoutExpired:
            process.kill()
            tally.in_flight += process.wait() == -signal.SIGKILL
        began = time.monotonic()
        assert_well(server)
        tally.seconds.append(time.monotonic() - began)
    print(
        f"\n{method}: {tally.in_flight} killed at work, within {one:.2f} s and {all_of_them:.2f} s; "
        f"{tally.ended_before} more had ended; the server was well after {max(tally.seconds):.2f} s at most"
    )

    assert tally.in_flight == KILLS
    assert orphans() == set()


def test_killed_while_it_holds_a_thread(server: Server) -> None:
    """The worst moment of the ptrace method, not left to luck: frozen, shown to hold a thread, killed."""
    held = 0
    draw = random.Random(SEED)  # noqa: S311
    deadline = time.monotonic() + 120
    while held < HELD_KILLS and time.monotonic() < deadline:
        process = _start(server.pid, "ptrace", looks=1000)
        try:
            _until_it_traces(server.pid, process)
            time.sleep(draw.uniform(0, 0.01))
            process.send_signal(signal.SIGSTOP)
            os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
            held += any(tracer for _, _, tracer in statuses(server.pid))
        finally:
            process.kill()
            process.wait()
        assert_well(server)
    assert held >= HELD_KILLS


def _until_it_traces(pid: int, process: subprocess.Popen[bytes]) -> None:
    """Return when a thread of the server was seen with a tracer for the first time."""
    deadline = time.monotonic() + 30
    while not any(tracer for _, _, tracer in statuses(pid)):
        assert process.poll() is None
        assert time.monotonic() < deadline
