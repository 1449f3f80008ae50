"""Test that traces refuse hot functions, and leave nothing behind if the server or the tool exits."""

from __future__ import annotations

import signal
import time
from typing import TYPE_CHECKING

import pytest

from innoscope.common.errors import ExitCode, NoRights, NoSuchProcess
from innoscope.probes.trace.model import NotTraceable
from safety.command import assert_one_clear_error, innoscope, run
from safety.leftovers import breakpoints, orphans
from safety.privileges import nobody
from safety.tracing import Tracing, trace
from safety.well import assert_well
from servers import Server
from waiting import until
from workloads import Fsync

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

FUNCTION = "log_write_up_to"
#: A progress line that counts at least one call.
SOME = r"\b[1-9][\d,]* calls"
#: A budget that is not exceeded even on a busy machine.
ANY = ("--budget", 1)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server("mysql-5.6.24") as server, Fsync(server, 2):
        yield server


def test_a_trace_ends_with_its_server_and_prints_its_results() -> None:
    with Server("mysql-5.6.24") as server:
        with (
            Fsync(server, 2),
            Tracing(server, FUNCTION, "--callers", "--seconds", 60, *ANY) as tracing,
        ):
            tracing.progress.wait_for(SOME)
            server.kill()
            code = tracing.finish()
        assert code == NoSuchProcess.exit_code, tracing.err
        assert "calls in" in tracing.out
        assert "the server exited" in tracing.out
        server.start()  # breakpoints belong to a file, so a new process would run into any that remain
        assert breakpoints(server.pid) == set()
        assert trace(server, FUNCTION, "--seconds", 0.2, *ANY)["target"]["pid"] == server.pid
    assert orphans() == set()


def test_a_killed_trace_leaves_nothing_in_the_kernel(server: Server) -> None:
    for moment in (0.0, 0.3):
        with Tracing(server, FUNCTION, "--callers", "--seconds", 60, *ANY) as tracing:
            time.sleep(moment)
            tracing.process.kill()
            assert tracing.finish() == -signal.SIGKILL
        assert_well(server)
        assert orphans() == set()
        _until_detached(server)
    assert_well(server)


def test_suspending_from_a_terminal_ends_the_trace_and_detaches(server: Server) -> None:
    with Tracing(server, FUNCTION, "--seconds", 60, *ANY) as tracing:
        tracing.process.send_signal(signal.SIGTSTP)
        code = tracing.finish()
    # The signal acts like Ctrl-C: during the trial nothing is printed; later, the results so far are printed.
    assert (code == ExitCode.INTERRUPTED) if not tracing.out else (code == 0 and "calls in" in tracing.out)
    _until_detached(server)
    assert_well(server)


def _until_detached(server: Server) -> None:
    until(lambda: not breakpoints(server.pid), within_s=30)


def test_an_unknown_function_is_reported_with_similar_names(server: Server) -> None:
    result = innoscope("trace", "--pid", server.pid, "log_write_upto")
    assert_one_clear_error(result, NotTraceable.exit_code, "log_write_upto", "no such function")
    assert "log_write_up_to" in result.stderr


def test_an_ambiguous_name_is_reported_with_the_functions(server: Server) -> None:
    result = innoscope("trace", "--pid", server.pid, "log_write_*")
    assert_one_clear_error(result, 2, "functions have this name")
    assert "log_write_up_to" in result.stderr


def test_a_glob_that_matches_one_function_traces_it(server: Server) -> None:
    assert trace(server, "log_write_up_t*", "--seconds", 0.2, *ANY)["function"] == FUNCTION


def test_a_function_that_exceptions_may_cross_has_no_return_probe(server: Server) -> None:
    with Tracing(server, "mysql_execute_command", "--seconds", 60, "--json", *ANY) as tracing:
        tracing.progress.wait_for(SOME)
    seen = tracing.document()
    assert seen["calls"] > 0
    assert seen["latency"] is None
    assert any("exception" in note for note in seen["notes"])


def test_a_missing_symbol_of_a_stripped_server_is_reported_with_a_remedy() -> None:
    with Server("mariadb-10.11") as stripped:
        result = innoscope("trace", "--pid", stripped.pid, "buf_LRU_get_free_block")
    assert_one_clear_error(result, NotTraceable.exit_code, "not exported", "stripped")
    assert "dbgsym" in result.stderr or "debug" in result.stderr


def test_missing_privileges_are_reported(server: Server) -> None:
    result = run(nobody("trace", "--pid", server.pid, FUNCTION))
    assert_one_clear_error(result, NoRights.exit_code, "its executable cannot be read")


@pytest.mark.parametrize(
    ("form", "begins"), [("folded", b"clone"), ("pprof", b"\x1f\x8b"), ("html", b"<!doctype")]
)
def test_callers_are_written_in_the_formats_of_stacks(
    server: Server, tmp_path: Path, form: str, begins: bytes
) -> None:
    file = tmp_path / form
    options = ["--callers", "--seconds", 60, "--format", form, "--output", file, *ANY]
    with Tracing(server, FUNCTION, *options) as tracing:
        tracing.progress.wait_for(SOME)
    assert tracing.process.returncode == 0, tracing.err
    assert file.read_bytes().startswith(begins)
