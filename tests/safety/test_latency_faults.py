"""Test that a latency profile leaves nothing behind, and names the next command where it cannot run."""

from __future__ import annotations

import signal
import time
from typing import TYPE_CHECKING

import pytest

from innoscope.common.errors import NoRights, NoSuchProcess
from innoscope.probes.trace.model import TooHot
from safety.command import assert_one_clear_error, innoscope, run
from safety.leftovers import breakpoints, orphans
from safety.privileges import nobody, without_bpf
from safety.tracing import Tracing
from safety.well import assert_well
from servers import Server
from waiting import until
from workloads import Cpu, Fsync

if TYPE_CHECKING:
    from collections.abc import Iterator

#: A budget that is not exceeded even on a busy machine.
ANY = ("--budget", 1)
#: A progress line that counts at least one sampled statement.
SOME = r"\b[1-9][\d,]* statements"


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server("mysql-5.6.24") as server, Fsync(server, 2):
        yield server


def _until_detached(server: Server) -> None:
    until(lambda: not breakpoints(server.pid), within_s=60)


def test_the_document_of_a_running_server(server: Server) -> None:
    with Tracing(server, "60s", "--json", *ANY, command="latency") as profiling:
        profiling.progress.wait_for(SOME)
    found = profiling.document()
    assert 0 < found["latency"]["count"] <= found["statements"]
    assert any(one["text"].startswith("INSERT INTO `t1`") for one in found["digests"])
    assert sum(one["mean"] for one in found["latency"]["waits"]) == pytest.approx(1, abs=1e-3)
    _until_detached(server)
    assert_well(server)


def test_a_killed_profile_leaves_nothing_in_the_kernel(server: Server) -> None:
    for moment in (0.0, 0.2, 1.0):
        with Tracing(server, "60s", *ANY, command="latency") as profiling:
            time.sleep(moment)
            profiling.process.kill()
            assert profiling.finish() == -signal.SIGKILL
        assert_well(server)
        assert orphans() == set()
        _until_detached(server)
    assert_well(server)


def test_an_interrupted_profile_prints_its_result(server: Server) -> None:
    with Tracing(server, "60s", *ANY, command="latency") as profiling:
        profiling.progress.wait_for(SOME)
        profiling.process.send_signal(signal.SIGINT)
        assert profiling.finish() == 0, profiling.err
    assert "interrupted after" in profiling.out
    _until_detached(server)


def test_a_profile_ends_with_its_server_and_prints_its_result() -> None:
    with Server("mysql-5.6.24") as server:
        with Fsync(server, 2), Tracing(server, "60s", *ANY, command="latency") as profiling:
            profiling.progress.wait_for(SOME)
            server.kill()
            code = profiling.finish()
        assert code == NoSuchProcess.exit_code, profiling.err
        assert "the server exited" in profiling.out
        server.start()  # breakpoints belong to a file, so a new process would run into any that remain
        assert breakpoints(server.pid) == set()
    assert orphans() == set()


def test_too_many_statements_are_refused() -> None:
    with Server("mysql-5.6.24") as server, Cpu(server, 4):
        result = innoscope("latency", "5s", "--pid", server.pid, "--budget", 0.001)
        assert_one_clear_error(result, TooHot.exit_code, "statements per second", "the budget is 0.1%")
        assert "innoscope profile --off-cpu" in result.stderr
        _until_detached(server)
        assert_well(server)


def test_missing_privileges_are_reported(server: Server) -> None:
    result = run(nobody("latency", "1s", "--pid", server.pid))
    assert_one_clear_error(result, NoRights.exit_code, "its executable cannot be read")


def test_without_bpf_the_next_command_is_named(server: Server) -> None:
    result = innoscope("latency", "1s", "--pid", server.pid, under=without_bpf())
    assert_one_clear_error(result, NoRights.exit_code, "cannot measure the latency of statements")
    assert "innoscope profile --off-cpu" in result.stderr
