"""Threads and pids that change hands: churn, and a pid that is reused between two looks."""

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
from safety.command import innoscope
from servers import Keeper, Server
from workloads import Idle

if TYPE_CHECKING:
    from collections.abc import Iterator

LOOKS = 100
IDLE = 50
CHURNERS = 4
BOUND_S = 60
_HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def churning() -> Iterator[Server]:
    """Without a thread cache, so that each connection is a new thread and each end of one ends it."""
    fresh = {"thread_cache_size": 0}
    with Server("mysql-5.6.24", options=fresh) as server, Idle(server, IDLE), Keeper() as keeper:
        arguments = [str(server.socket), str(CHURNERS), "0", str(BOUND_S)]
        process = subprocess.Popen(
            [sys.executable, str(_HERE / "churn_main.py"), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        keeper.watch(process.pid)
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        yield server
        process.kill()
        process.communicate()


def _connections(server: Server) -> int:
    """The id of a new connection counts them all."""
    with closing(server.connect()) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT CONNECTION_ID()")
        return int(cursor.fetchone()[0])


@pytest.mark.parametrize("method", ["bpf", "ptrace"])
def test_threads_come_and_go_while_we_look(churning: Server, method: str) -> None:
    engine = Engine(find_one(churning.pid), method=method)
    began, seen, complete, total = _connections(churning), set(), 0, 0
    for _ in range(LOOKS):
        dump = engine.look()
        assert len(dump.threads) > IDLE
        seen |= {thread.tid for thread in dump.threads}
        still = [thread for thread in dump.threads if thread.state == "S"]
        complete += sum(thread.trust.value == "exact" for thread in still)
        total += len(still)
    made = _connections(churning) - began
    print(
        f"\n{method}: {LOOKS} looks, {made} connections made, {len(seen)} threads seen, "
        f"{complete} of {total} sleeping ones exact"
    )

    assert made > LOOKS
    assert len(seen) > IDLE + CHURNERS, "the same threads all the time"
    assert complete / total > 0.95


def test_the_command_line_amid_churn(churning: Server) -> None:
    result = innoscope("stacks", "--pid", churning.pid, "--count", 30, "--interval", 0.02)

    assert (result.returncode, result.stderr) == (0, "")


@pytest.mark.parametrize("method", ["bpf", "ptrace"])
def test_a_reused_pid_is_not_taken_for_the_server(tmp_path: Path, method: str) -> None:
    """In a pid namespace, where the next pid can be chosen."""
    own = ["unshare", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child"]
    result = subprocess.run(
        [*own, sys.executable, "-m", "safety.reused_main", str(tmp_path), method],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "PYTHONPATH": str(_HERE.parent)},
    )

    assert result.returncode == 0, result.stderr
    told = json.loads(result.stdout)
    assert told["pids"][0] == told["pids"][1]
    assert (told["before"], told["after"]) == (1, "NoSuchProcess")
