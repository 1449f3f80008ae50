"""What can go wrong with a trace: the server ends, the tool is killed, a wrong name, no rights."""

from __future__ import annotations

import signal
import time
from typing import TYPE_CHECKING

import pytest

from innoscope.common.errors import ExitCode, NoRights, NoSuchProcess
from innoscope.probes.trace.model import NotTraceable
from safety.command import assert_one_clear_error, innoscope, run
from safety.debugging import until
from safety.leftovers import breakpoints, orphans
from safety.privileges import nobody
from safety.tracing import Tracing, trace
from safety.well import assert_well
from scale import long
from servers import Server
from workloads import Fsync

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

FUNCTION = "log_write_up_to"
#: A budget that a loaded machine does not exceed either.
ANY = ("--budget", 1)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server("mysql-5.6.24") as server, Fsync(server, 2):
        yield server


def test_a_server_that_is_killed_ends_the_trace_and_what_was_seen_is_told() -> None:
    with Server("mysql-5.6.24") as server:
        with (
            Fsync(server, 2) as load,
            Tracing(server, FUNCTION, "--callers", "--seconds", 60, *ANY) as tracing,
        ):
            before = load.throughput()
            until(lambda: load.throughput() > before + 20)  # commits, each of which the trace counts
            server.kill()
            code = tracing.finish()
        assert code == NoSuchProcess.exit_code, tracing.err
        assert "calls in" in tracing.out
        assert "the server ended" in tracing.out
        server.start()  # another process on the same file: nothing of the trace is there
        assert breakpoints(server.pid) == set()
        assert trace(server, FUNCTION, "--seconds", 0.2, *ANY)["target"]["pid"] == server.pid
    assert orphans() == set()


def test_killed_at_work_nothing_is_left(server: Server) -> None:
    for moment in (0.0, 0.3):
        with Tracing(server, FUNCTION, "--callers", "--seconds", 60, *ANY) as tracing:
            time.sleep(moment)
            tracing.process.kill()
            assert tracing.finish() == -signal.SIGKILL
        assert_well(server)
        assert orphans() == set()
        _gone(server)
    assert_well(server)


def test_suspending_from_a_terminal_ends_the_trace_and_detaches(server: Server) -> None:
    with Tracing(server, FUNCTION, "--seconds", 60, *ANY) as tracing:
        tracing.process.send_signal(signal.SIGTSTP)
        code = tracing.finish()
    # As Ctrl-C: in the trial nothing is printed, later what was seen.
    assert (code == ExitCode.INTERRUPTED) if not tracing.out else (code == 0 and "calls in" in tracing.out)
    _gone(server)
    assert_well(server)


def _gone(server: Server) -> None:
    deadline = time.monotonic() + 30
    while left := breakpoints(server.pid):
        assert time.monotonic() < deadline, left
        time.sleep(0.05)


@long("tests/safety/test_uprobes.py tells them apart")
def test_two_servers_on_one_file_are_told_apart(server: Server) -> None:
    with Server("mysql-5.6.24") as idle:
        quiet = trace(idle, FUNCTION, "--seconds", 1, *ANY)
        busy = trace(server, FUNCTION, "--seconds", 1, *ANY)
    assert quiet["calls"] < 10  # its own background
    assert busy["calls"] > 20


def test_a_name_that_is_not_there_comes_with_those_near_it(server: Server) -> None:
    result = innoscope("trace", "--pid", server.pid, "log_write_upto")
    assert_one_clear_error(result, NotTraceable.exit_code, "log_write_upto", "no such function")
    assert "log_write_up_to" in result.stderr


def test_a_name_of_several_functions_lists_them(server: Server) -> None:
    result = innoscope("trace", "--pid", server.pid, "log_write_*")
    assert_one_clear_error(result, 2, "functions have that name")
    assert "log_write_up_to" in result.stderr


def test_a_glob_of_one_function_is_that_function(server: Server) -> None:
    assert trace(server, "log_write_up_t*", "--seconds", 0.2, *ANY)["function"] == FUNCTION


def test_no_return_probe_where_an_exception_may_cross(server: Server) -> None:
    seen = trace(server, "mysql_execute_command", "--seconds", 0.3, "--budget", 1)
    assert seen["calls"] > 0
    assert seen["latency"] is None
    assert any("exception" in note for note in seen["notes"])


def test_a_stripped_server_says_what_gives_it_names() -> None:
    with Server("mariadb-10.11") as stripped:
        result = innoscope("trace", "--pid", stripped.pid, "buf_LRU_get_free_block")
    assert_one_clear_error(result, NotTraceable.exit_code, "not exported", "stripped")
    assert "dbgsym" in result.stderr or "debug" in result.stderr


def test_without_rights_it_says_so(server: Server) -> None:
    result = run(nobody("trace", "--pid", server.pid, FUNCTION))
    assert_one_clear_error(result, NoRights.exit_code, "its executable cannot be read")


@pytest.mark.parametrize(
    ("form", "begins"), [("folded", b"clone"), ("pprof", b"\x1f\x8b"), ("html", b"<!doctype")]
)
def test_callers_in_the_formats_of_stacks(server: Server, tmp_path: Path, form: str, begins: bytes) -> None:
    file = tmp_path / form
    options = ["--callers", "--seconds", 0.3, "--format", form, "--output", file, *ANY]
    result = innoscope("trace", "--pid", server.pid, FUNCTION, *options)
    assert result.returncode == 0, result.stderr
    assert file.read_bytes().startswith(begins)
