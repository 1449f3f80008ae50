"""Test the facts about idle, stopped, traced and exited processes on which the checks of changes depend."""

from __future__ import annotations

import os
import signal
import subprocess
from typing import TYPE_CHECKING

import pytest

from innoscope.target.proc import ProcFs
from innoscope.toggles import checks, facts
from innoscope.toggles.journal import Journal
from unit.test_target_sql import target

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from innoscope.toggles.facts import Facts


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    """Start a process that does not listen on any socket."""
    with subprocess.Popen(["sleep", "600"]) as child:
        yield child
        child.kill()


@pytest.fixture
def gather(process: subprocess.Popen[bytes], tmp_path: Path) -> Callable[[], Facts]:
    start = ProcFs().stat(process.pid).start_time
    return lambda: facts.gather(target(pid=process.pid, start_time=start), Journal(tmp_path / "state"))


def test_facts_of_a_process_that_listens_on_nothing(gather: Callable[[], Facts]) -> None:
    seen = gather()

    assert (seen.stopped, seen.tracer, seen.listens, seen.phase) == (0, None, False, None)
    assert (seen.memory_error, seen.ptrace_capable, seen.journal_problem) == (None, True, None)
    assert seen.build_id


def test_facts_of_a_stopped_process(process: subprocess.Popen[bytes], gather: Callable[[], Facts]) -> None:
    process.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)

    assert gather().stopped == 1


def test_facts_of_a_traced_process(process: subprocess.Popen[bytes], gather: Callable[[], Facts]) -> None:
    with subprocess.Popen(
        ["gdb", "-nx", "-q", "-p", str(process.pid), "-ex", "echo HELD\\n"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as gdb:
        assert gdb.stdout is not None
        while b"HELD" not in gdb.stdout.readline():
            assert gdb.poll() is None
        seen = gather()
        gdb.communicate(b"detach\nquit\n")

    assert (seen.tracer, seen.tracer_name, seen.stopped) == (gdb.pid, "gdb", 1)
    assert gather().tracer is None


def test_facts_of_a_process_that_has_ended(
    process: subprocess.Popen[bytes], gather: Callable[[], Facts]
) -> None:
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert gather().start_time is None, "a zombie still counts as the process"
    process.wait()
    assert gather().start_time is None


def test_an_unprivileged_user_lacks_rights_and_a_journal(
    process: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    start = ProcFs().stat(process.pid).start_time
    one = target(pid=process.pid, start_time=start)
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.setresgid(65534, 65534, 65534)
        os.setresuid(65534, 65534, 65534)
        seen = facts.gather(one, Journal(tmp_path / "state"))
        verdicts = checks.server_verdicts(one, seen, "memory")
        os.write(writing, ",".join(one.check for one in verdicts if not one.ok).encode())
        os._exit(0)
    os.waitpid(child, 0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        failed = pipe.read().split(",")
    assert {"rights", "journal"} <= set(failed)
    assert "ptrace_policy" not in failed
