"""Test that snapshots are correct while threads start and exit continually, and if a pid is reused."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

import pytest

import snapshot_methods
from innoscope.sampling.engine import Engine
from innoscope.sampling.model import AT_REST
from innoscope.target.discover import find_one
from safety.churn import CLIENTS, churn
from safety.command import innoscope
from safety.pid_namespace import run_in_pid_namespace
from servers import Server
from workloads import Idle

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SNAPSHOTS = 100
IDLE = 50


@pytest.fixture(scope="module")
def churning() -> Iterator[Server]:
    """Start a server without a thread cache, so that each connection starts and ends a thread."""
    uncached = {"thread_cache_size": 0}
    with Server("mysql-5.6.24", options=uncached) as server, Idle(server, IDLE), churn(server):
        yield server


def _connections(server: Server) -> int:
    """Return the number of connections so far: the id of a new connection, because ids are consecutive."""
    with closing(server.connect()) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT CONNECTION_ID()")
        return int(cursor.fetchone()[0])


@pytest.mark.parametrize("method", snapshot_methods.ALL)
def test_snapshots_under_churn_have_exact_stacks(churning: Server, method: str) -> None:
    engine = Engine(find_one(churning.pid), method=method)
    began, taken, seen, complete, total = _connections(churning), 0, set(), 0, 0
    while taken < SNAPSHOTS or _connections(churning) - began < SNAPSHOTS:
        snapshot = engine.take_snapshot()
        assert len(snapshot.threads) > IDLE
        taken += 1
        seen |= {thread.tid for thread in snapshot.threads}
        sleeping = [thread for thread in snapshot.threads if thread.state == "S"]
        complete += sum(thread.trust in AT_REST for thread in sleeping)
        total += len(sleeping)

    assert len(seen) > IDLE + CLIENTS, "no new threads"
    assert complete / total > 0.95


def test_the_command_line_works_under_churn(churning: Server) -> None:
    result = innoscope("stacks", "--pid", churning.pid, "--count", 30, "--interval", 0.02)

    assert (result.returncode, result.stderr) == (0, "")


@pytest.mark.parametrize("method", snapshot_methods.ALL)
def test_a_reused_pid_is_not_mistaken_for_the_server(tmp_path: Path, method: str) -> None:
    results = run_in_pid_namespace("safety.reused_pid_main", tmp_path, method)

    assert results["pids"][0] == results["pids"][1]
    assert (results["before"], results["after"]) == (1, "NoSuchProcess")
