"""Test that profiles end cleanly if they are interrupted or fail, and work during recovery and shutdown.

During recovery and shutdown, SQL is unavailable.
"""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pymysql
import pytest

from innoscope.common.errors import NoSuchProcess
from innoscope.sampling.profile.oncpu import OnCpuProfiler
from innoscope.sampling.profile.run import run
from innoscope.target.discover import find_one
from safety.command import INNOSCOPE, assert_one_clear_error, innoscope
from safety.command import run as run_command
from safety.leftovers import orphans
from safety.privileges import denying, nobody, without_bpf
from safety.progress import Progress
from safety.recovering import DOUBLINGS, ROOMY, ROOMY_9, TIGHT, TIGHT_9, make_redo
from safety.slow_shutdown import OPTIONS, backlog
from safety.well import assert_well
from scale import count, few, long
from servers import Server
from waiting import until
from workloads import Burn, Idle

if TYPE_CHECKING:
    from collections.abc import Iterator

    from servers.launch import Options

#: A progress line that counts at least ten samples or waits: the stack of a single one may be incomplete.
SOME = r"\b[1-9][\d,]*\d (?:samples|records of waits)"
KILLS = count(quick=2, full=8)
#: A line in the log of MySQL 9.7 or 5.6 which says that InnoDB starts.
_RECOVERING = re.compile(r"InnoDB initialization has started|Starting crash recovery")
_HERE = Path(__file__).parent
_KINDS = {"on-cpu": [], "off-cpu": ["--off-cpu"]}
#: Command prefixes of profiles: both kinds with BPF, and CPU time with per-CPU and per-thread perf events.
_UNDER = {"on-cpu": [], "off-cpu": [], "perf": denying("bpf"), "perf-threads": without_bpf()}


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server("mysql-5.6.24") as server, Idle(server, 20), Burn(server, 1):
        yield server


def _command(pid: int, kind: str, *arguments: object) -> list[str]:
    command = [*_UNDER[kind], INNOSCOPE, "profile", "--pid", pid, *_KINDS.get(kind, []), *arguments]
    return list(map(str, command))


def _start(pid: int, kind: str, *arguments: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        _command(pid, kind, *arguments),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _until_attached(process: subprocess.Popen[str]) -> None:
    """Wait until the process has opened a pidfd, which it does after loading its program."""
    while True:
        assert process.poll() is None, process.communicate()
        for link in Path(f"/proc/{process.pid}/fd").iterdir():
            with suppress(FileNotFoundError):  # the descriptor has been closed
                if "pidfd" in str(link.readlink()):
                    return
        time.sleep(0.01)


@pytest.mark.parametrize("kind", _UNDER)
def test_ctrl_c_prints_the_profile_so_far(server: Server, kind: str) -> None:
    progress = Progress()
    process = progress.start(_command(server.pid, kind, "--seconds", 60))
    progress.wait_for(SOME)
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=30)
    err = progress.finish()

    assert process.returncode == 0, err
    assert "interrupted after" in out
    assert "start_thread" in out


@pytest.mark.parametrize("kind", _UNDER)
def test_a_profile_ends_with_its_server(kind: str) -> None:
    with Server("mysql-5.6.24") as server, Burn(server, 1):
        progress = Progress()
        process = progress.start(_command(server.pid, kind, "--seconds", 60, "--json"))
        progress.wait_for(SOME)
        server.kill()
        out, _ = process.communicate(timeout=30)
        err = progress.finish()

    assert process.returncode == 4, err
    profile = json.loads(out)
    assert "the server exited after" in profile["ended"]
    assert profile["total"] > 0
    if kind == "off-cpu":
        assert len(profile["threads"]) > 10


@pytest.mark.parametrize("kind", _UNDER)
def test_a_killed_profiler_leaves_nothing_in_the_kernel(server: Server, kind: str) -> None:
    draw = random.Random(20261121)  # noqa: S311
    for _ in range(KILLS):
        process = _start(server.pid, kind, "--seconds", 30)
        time.sleep(draw.uniform(0.1, 0.8))
        process.kill()
        process.communicate()
    assert_well(server)
    assert orphans() == set()


def test_a_reused_pid_is_not_sampled(server: Server) -> None:
    def samples(later: int) -> int:
        command = [sys.executable, str(_HERE / "profiled_main.py"), str(server.pid), str(later)]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
        return int(done.stdout)

    assert samples(0) > 100
    assert samples(1) == 0


@pytest.mark.parametrize("kind", _KINDS)
def test_missing_privileges_are_reported(server: Server, kind: str) -> None:
    arguments = ("profile", "--pid", server.pid, "--seconds", 1, *_KINDS[kind])
    assert_one_clear_error(run_command(nobody(*arguments)), 6, "its executable cannot be read")
    no_events = denying("bpf", "perf_event_open")
    assert_one_clear_error(innoscope(*arguments, under=no_events), 6, "without BPF", "not permitted")


def test_a_process_that_has_ended_is_reported() -> None:
    with Server("mysql-5.6.24") as server:
        target = find_one(server.pid)
        profiler = OnCpuProfiler(target)
        server.kill()
        with pytest.raises(NoSuchProcess, match="does not exist or has exited"):
            run(profiler, target, 1)


def _shares(profile: dict[str, Any]) -> dict[str, float]:
    return {wait: count / profile["total"] for wait, count in profile["waits"].items()}


@pytest.mark.parametrize(
    ("name", "roomy", "tight"),
    [
        pytest.param("mysql-5.6.24", ROOMY, TIGHT, marks=long("one server recovers in make test")),
        ("mysql-9.7", ROOMY_9, TIGHT_9),
    ],
)
def test_a_crash_recovery_is_profiled(name: str, roomy: Options, tight: dict[str, str | int | None]) -> None:
    """Profile a recovery while SQL is unavailable; the report contains the recovery's progress.

    The server is stopped while the profiler is created, which could take longer than the recovery.
    """
    with Server(name, options=roomy) as server:
        make_redo(server, DOUBLINGS - 1)
        server.kill()
        server.options = {
            **tight,
            "performance_schema": "OFF",
        }  # performance_schema's tables would delay the recovery by a second
        before = len(server.error_log.read_text())
        server.start(wait=False)
        until(lambda: _RECOVERING.search(server.error_log.read_text()[before:]), every_s=0.01)
        progress: list[str] = []
        os.kill(server.pid, signal.SIGSTOP)
        try:
            target = _found(server.pid)
            with pytest.raises(pymysql.err.OperationalError, match="connect"):
                server.connect()
            profiler = OnCpuProfiler(target)
        finally:
            os.kill(server.pid, signal.SIGCONT)
        profile, alive = run(profiler, target, 2.5, lambda _, text: progress.append(text))
        server.wait_ready()
    waits = _by_wait(profile)
    assert alive
    assert progress
    assert "recovery" in progress[-1]
    assert waits["recovery"] > 0.3


@pytest.mark.parametrize(
    "name", few(["mysql-5.6.24", "mysql-9.7"], "mysql-5.6.24", reason="one server shuts down in make test")
)
def test_a_slow_shutdown_is_profiled(name: str) -> None:
    """Profile a shutdown until the server has exited."""
    with Server(name, options=OPTIONS) as server, backlog(server):
        process = _start(server.pid, "on-cpu", "--seconds", 60, "--json")
        _until_attached(process)
        server.stop()
        out, err = process.communicate(timeout=60)
    assert process.returncode == 4, err
    profile = json.loads(out)
    assert profile["total"] > 10
    assert _shares(profile).get("purge", 0) + _shares(profile).get("shutdown", 0) > 0.3


def _found(pid: int) -> Any:
    """Return the target; retry until the new process has exec'd the server."""
    deadline = time.monotonic() + 10
    while True:
        try:
            return find_one(pid)
        except Exception:
            if time.monotonic() > deadline:
                raise


def _by_wait(profile: Any) -> dict[str, float]:
    total = sum(row.number for row in profile.rows)
    found: dict[str, float] = {}
    for row in profile.rows:
        found[row.thread.wait] = found.get(row.thread.wait, 0) + row.number / total
    return found
