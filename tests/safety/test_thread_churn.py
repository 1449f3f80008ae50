"""Snapshots are correct while threads start and exit all the time, and if a pid is reused."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from innoscope.sampling.engine import Engine
from innoscope.target.discover import find_one
from safety.churn import CLIENTS, churn
from safety.command import innoscope
from servers import Server
from workloads import Idle

if TYPE_CHECKING:
    from collections.abc import Iterator

SNAPSHOTS = 100
IDLE = 50
_HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def churning() -> Iterator[Server]:
    """Start a server without a thread cache, so that each connection starts and ends a thread."""
    uncached = {"thread_cache_size": 0}
    with Server("mysql-5.6.24", options=uncached) as server, Idle(server, IDLE), churn(server):
        yield server


def _connections(server: Server) -> int:
    """Return the number of connections so far, which is the id of the new connection."""
    with closing(server.connect()) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT CONNECTION_ID()")
        return int(cursor.fetchone()[0])


@pytest.mark.parametrize("method", ["bpf", "ptrace"])
def test_snapshots_under_churn_have_exact_stacks(churning: Server, method: str) -> None:
    engine = Engine(find_one(churning.pid), method=method)
    began, seen, complete, total = _connections(churning), set(), 0, 0
    for _ in range(SNAPSHOTS):
        snapshot = engine.take_snapshot()
        assert len(snapshot.threads) > IDLE
        seen |= {thread.tid for thread in snapshot.threads}
        sleeping = [thread for thread in snapshot.threads if thread.state == "S"]
        complete += sum(thread.trust.value == "exact" for thread in sleeping)
        total += len(sleeping)
    made = _connections(churning) - began

    assert made > SNAPSHOTS
    assert len(seen) > IDLE + CLIENTS, "no new threads"
    assert complete / total > 0.95


def test_the_command_line_works_under_churn(churning: Server) -> None:
    result = innoscope("stacks", "--pid", churning.pid, "--count", 30, "--interval", 0.02)

    assert (result.returncode, result.stderr) == (0, "")


@pytest.mark.parametrize("method", ["bpf", "ptrace"])
def test_a_reused_pid_is_not_mistaken_for_the_server(tmp_path: Path, method: str) -> None:
    """Reuse the pid in a pid namespace, where the next pid can be set."""
    own = ["unshare", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child"]
    result = subprocess.run(
        [*own, sys.executable, "-m", "safety.reused_pid_main", str(tmp_path), method],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "PYTHONPATH": str(_HERE.parent)},
    )

    assert result.returncode == 0, result.stderr
    results = json.loads(result.stdout)
    assert results["pids"][0] == results["pids"][1]
    assert (results["before"], results["after"]) == (1, "NoSuchProcess")
