"""Take many snapshots of a thousand connections under load: the server does not notice."""

from __future__ import annotations

import json
import subprocess
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from innoscope.sampling.engine import Engine
from innoscope.target.discover import find_one
from safety.command import DEADLINE_S, innoscope
from safety.counter import Counter, Disturbance, threads
from safety.watcher import Watched, Watcher
from scale import count, long
from servers import Server, ensure_packages
from workloads import Cpu, Idle, RowLock, UpdateStorm

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

LOOKS = count(quick=100, full=200)
FOUND = 18  # exit status: something is wrong, here rows that others wait for
COMMANDS = 10  # the same by the command line, each a fresh process

#: In every dump the stopping tools break off the calls of all threads but those on a CPU. Most are restarted;
#: these are not: InnoDB's 10 io_getevents and the signal handler's sigtimedwait.
EINTR_PER_DUMP = 11


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """1,000 connections: most idle, some waiting for a row, some updating one row, some computing."""
    with ExitStack() as stack:
        server = stack.enter_context(Server("mysql-5.6.24"))
        for kind, count in ((Idle, 950), (RowLock, 29), (UpdateStorm, 12), (Cpu, 8)):
            stack.enter_context(kind(server, count))
        assert len(threads(server.pid)) > 1000
        yield server


def _while(pid: int, work: Callable[[], object]) -> tuple[Disturbance, Watched]:
    """What happened to the process while ``work`` was done."""
    watcher, counter = Watcher(pid), Counter(pid)
    with counter, watcher:
        work()
    assert counter.seen is not None
    assert watcher.seen is not None
    print(f"\n{work.__name__}: {counter.seen}; {watcher.seen}")
    assert watcher.seen.main_samples > 10
    assert watcher.seen.rounds > 1
    return counter.seen, watcher.seen


def test_many_looks_leave_the_server_alone(server: Server) -> None:
    engine = Engine(find_one(server.pid), method="bpf")

    def looks() -> None:
        for _ in range(LOOKS):
            dump = engine.look()
            assert dump.method == "bpf"
            assert len(dump.threads) > 1000

    disturbance, watched = _while(server.pid, looks)

    assert disturbance.calls > LOOKS, "the server was to be under load"
    assert disturbance.nothing, disturbance
    assert (watched.stopped, watched.traced) == (0, 0)


@long("the snapshots above are the same code")
def test_the_command_line_leaves_the_server_alone(server: Server) -> None:
    def commands() -> None:
        for number in range(COMMANDS):
            extra = ["--kernel"] if number % 2 else ["--count", 3, "--interval", 0.05]
            result = innoscope("stacks", "--pid", server.pid, *extra)
            assert result.returncode == 0, result.stderr
            assert "not stopped" in result.stdout.splitlines()[0]

    disturbance, watched = _while(server.pid, commands)

    assert disturbance.nothing, disturbance
    assert (watched.stopped, watched.traced) == (0, 0)


def test_diagnose_leaves_the_server_alone(server: Server) -> None:
    """With all its sources: probes come and go, memory is read, SQL asked, owners of locks looked up."""

    def diagnose() -> None:
        result = innoscope("diagnose", "--pid", server.pid, "-u", "root", "--seconds", 6, "--json")
        assert result.returncode in (0, FOUND), result.stderr
        record = json.loads(result.stdout)
        assert record["looks"] > 0
        untold = {one["source"]: one["words"] for one in record["cannot_tell"]}
        assert not {"looks", "memory"} & untold.keys()
        print(f"probes: {untold.get('probes', 'attached and taken off')}")

    disturbance, watched = _while(server.pid, diagnose)

    assert disturbance.nothing, disturbance
    assert (watched.stopped, watched.traced) == (0, 0)


def test_the_counter_sees_the_ptrace_method(server: Server) -> None:
    """It holds each thread for a moment, which breaks off the call that the thread is in; it says so."""

    def by_ptrace() -> None:
        result = innoscope("stacks", "--pid", server.pid, "--method", "ptrace")
        assert result.returncode == 0, result.stderr
        assert "not stopped" not in result.stdout.splitlines()[0]

    disturbance, _ = _while(server.pid, by_ptrace)

    assert disturbance.ptrace_calls > 2000  # two or more for each thread
    assert disturbance.stopped_threads > 900
    assert sum(disturbance.restarted.values()) > 900
    assert sum(disturbance.interrupted.values()) >= EINTR_PER_DUMP


@long("the ptrace method above shows that the counter works")
@pytest.mark.parametrize(
    "command",
    [
        ["eu-stack", "-q", "-p"],
        ["gdb", "--readnever", "--batch", "-nx", "-ex", "thread apply all bt", "-p"],
    ],
    ids=["eu-stack", "gdb"],
)
def test_the_counter_sees_the_tools_that_stop(server: Server, command: list[str]) -> None:
    """Both in their quickest form: what matters is what they do to the server, not what they print."""
    ensure_packages(["gdb", "elfutils"])

    def tool() -> None:
        subprocess.run([*command, str(server.pid)], capture_output=True, timeout=DEADLINE_S, check=False)

    disturbance, _ = _while(server.pid, tool)

    assert disturbance.ptrace_calls > 1000
    assert disturbance.stopped_threads > 900
    assert sum(disturbance.restarted.values()) > 900
    assert sum(disturbance.interrupted.values()) >= EINTR_PER_DUMP
