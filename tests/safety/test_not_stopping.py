"""Test that many snapshots of a thousand connections under load do not stop, signal or trace the server."""

from __future__ import annotations

import json
import subprocess
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

import snapshot_methods
from innoscope.sampling.engine import Engine
from innoscope.target.discover import find_one
from safety.command import DEADLINE_S, innoscope
from safety.counter import Counter, Disturbance, threads
from scale import count, long
from servers import Server, ensure_packages
from workloads import Cpu, Idle, RowLock, UpdateStorm

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SNAPSHOTS = count(quick=30, full=500)
FOUND = 18  # exit code of diagnose with findings, here a row lock with waiters
COMMANDS = 10  # number of `innoscope stacks` commands to run

#: Number of calls that return EINTR when a tool stops the server for a snapshot. The stop interrupts the
#: system calls of all sleeping threads. The kernel restarts most of them, but neither io_getevents in
#: InnoDB's 10 I/O threads nor sigtimedwait in the signal handler's thread.
EINTR_PER_SNAPSHOT = 11


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """Start a server with 1,000 connections: idle, waiting for a row, updating one row, or CPU-bound."""
    with ExitStack() as stack:
        server = stack.enter_context(Server("mysql-5.6.24"))
        for kind, count in ((Idle, 950), (RowLock, 29), (UpdateStorm, 12), (Cpu, 8)):
            stack.enter_context(kind(server, count))
        assert len(threads(server.pid)) > 1000
        yield server


def _disturbance(pid: int, work: Callable[[], object]) -> Disturbance:
    """Return the events counted in the process during ``work``."""
    with Counter(pid) as counter:
        work()
    assert counter.seen is not None
    return counter.seen


@pytest.mark.parametrize("method", snapshot_methods.STOPPING_NOTHING)
def test_snapshots_do_not_disturb_the_server(server: Server, method: str) -> None:
    engine = Engine(find_one(server.pid), method=method)

    def take_snapshots() -> None:
        for _ in range(SNAPSHOTS):
            snapshot = engine.take_snapshot()
            assert snapshot.method == method
            assert len(snapshot.threads) > 1000

    disturbance = _disturbance(server.pid, take_snapshots)
    assert disturbance.calls > SNAPSHOTS, "the server was not under load"
    assert disturbance.nothing, disturbance


@long("the snapshots above run the same code")
def test_the_command_line_does_not_disturb_the_server(server: Server) -> None:
    def commands() -> None:
        for number in range(COMMANDS):
            extra = ["--kernel"] if number % 2 else ["--count", 3, "--interval", 0.05]
            result = innoscope("stacks", "--pid", server.pid, *extra)
            assert result.returncode == 0, result.stderr
            assert "not stopped" in result.stdout.splitlines()[0]

    disturbance = _disturbance(server.pid, commands)
    assert disturbance.nothing, disturbance


def test_diagnose_does_not_disturb_the_server(server: Server) -> None:
    """Run diagnose with all its sources: probes, memory, SQL and lock owners."""

    def diagnose() -> None:
        result = innoscope("diagnose", "--pid", server.pid, "-u", "root", "--seconds", 6, "--json")
        assert result.returncode in (0, FOUND), result.stderr
        record = json.loads(result.stdout)
        assert record["looks"] > 0
        untold = {one["source"]: one["words"] for one in record["cannot_tell"]}
        assert not {"looks", "memory"} & untold.keys()

    disturbance = _disturbance(server.pid, diagnose)
    assert disturbance.nothing, disturbance


def test_the_counter_counts_the_stops_of_the_ptrace_method(server: Server) -> None:
    """Check that the counter detects the ptrace method, which stops each thread briefly and reports this.

    Each stop interrupts the thread's system call. Take two snapshots, because an I/O thread may not be in a
    system call at one of them.
    """

    def by_ptrace() -> None:
        twice = ("--count", 2, "--interval", 0.05)
        result = innoscope("stacks", "--pid", server.pid, "--method", "ptrace", *twice)
        assert result.returncode == 0, result.stderr
        assert "not stopped" not in result.stdout.splitlines()[0]

    disturbance = _disturbance(server.pid, by_ptrace)

    assert disturbance.ptrace_calls > 2000  # two or more for each thread
    assert disturbance.stopped_threads > 900
    assert sum(disturbance.restarted.values()) > 900
    assert sum(disturbance.interrupted.values()) >= EINTR_PER_SNAPSHOT


@long("the ptrace method above shows that the counter works")
@pytest.mark.parametrize(
    "command",
    [
        ["eu-stack", "-q", "-p"],
        ["gdb", "--readnever", "--batch", "-nx", "-ex", "thread apply all bt", "-p"],
    ],
    ids=["eu-stack", "gdb"],
)
def test_the_counter_counts_the_stops_of_other_tools(server: Server, command: list[str]) -> None:
    ensure_packages(["gdb", "elfutils"])

    def tool() -> None:
        subprocess.run([*command, str(server.pid)], capture_output=True, timeout=DEADLINE_S, check=False)

    disturbance = _disturbance(server.pid, tool)

    assert disturbance.ptrace_calls > 1000
    assert disturbance.stopped_threads > 900
    assert sum(disturbance.restarted.values()) > 900
    assert sum(disturbance.interrupted.values()) >= EINTR_PER_SNAPSHOT
