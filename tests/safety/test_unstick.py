"""Test that `unstick` resumes a server, whatever stopped it, and that a query succeeds within a second.

The time is measured on an existing connection, from the start of the command to the query's result. The time
that the command or the test waits for a CPU does not count.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import time
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from innoscope.common.errors import NoRights, NoSuchProcess
from innoscope.toggles.journal import Journal
from innoscope.toggles.model import ChangeRefused
from safety.command import DEADLINE_S, INNOSCOPE, assert_one_clear_error, innoscope, run
from safety.debugging import Client, Gdb, is_stopped, threads, well
from safety.pretender import Pretender
from safety.privileges import nobody
from safety.stopwatch import queued
from scale import count, few
from servers import Server
from waiting import until
from workloads import Idle

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SERVES_AGAIN_S = 1.0
WATCH_S = 3
SEED = 20261121
#: Number of times that a killed gdb must leave the server stopped. About one kill in four does so.
LEFT_STANDING = count(quick=1, full=3)
INTERRUPTED = 130


@pytest.fixture(
    scope="module",
    params=few(["mysql-5.6.24", "mariadb-11.4.5"], "mysql-5.6.24", reason="the kernel stops both alike"),
)
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    with Server(request.param) as server, Idle(server, 100):
        yield server


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the temporary state directory that the commands use."""
    folder = tmp_path / "state"
    monkeypatch.setenv("INNOSCOPE_STATE", str(folder))
    return folder


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    with Client(closing(server.connect(read_timeout=DEADLINE_S))) as client:
        client.answered_at()
        yield client


def _start(*arguments: object) -> subprocess.Popen[str]:
    command = [INNOSCOPE, "unstick", *map(str, arguments)]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, text=True)


def _rescued(server: Server, client: Client, *options: str) -> dict[str, Any]:
    """Run `unstick`; check that the server responds in time and is not traced. Return the JSON document."""
    began = time.monotonic() - queued()
    process = _start("--pid", server.pid, "--json", *options)
    served = client.answered_at() - queued() - began
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    served -= queued(Path(f"/proc/{process.pid}"))
    output, errors = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 0, errors
    assert well(server.pid)
    document: dict[str, Any] = json.loads(output)
    assert served <= SERVES_AGAIN_S
    assert document["rescue"]["answered"] is True
    return document


def test_a_running_server_needs_no_rescue(server: Server) -> None:
    result = innoscope("unstick", "--pid", server.pid)

    assert result.returncode == 0, result.stderr
    assert "nothing to do" in result.stdout


def test_a_server_stopped_by_a_signal_is_resumed(server: Server, client: Client) -> None:
    os.kill(server.pid, signal.SIGSTOP)
    until(lambda: is_stopped(server.pid))

    document = _rescued(server, client)

    assert document["found"]["stopped"] == document["found"]["threads"]
    assert document["found"]["tracers"] == []
    assert document["rescue"]["steps"] == ["SIGCONT to the server"]


def test_a_server_stopped_by_a_killed_gdb_is_resumed(server: Server, client: Client) -> None:
    draw = random.Random(SEED)  # noqa: S311
    left = 0
    deadline = time.monotonic() + 240
    while left < LEFT_STANDING and time.monotonic() < deadline:
        with Gdb(server.pid, "-batch") as gdb:
            gdb.until_traced()
            time.sleep(draw.uniform(0, 0.01))
            gdb.kill()
        if not is_stopped(server.pid):
            continue
        left += 1
        document = _rescued(server, client)
        assert document["found"]["tracers"] == []
    assert left == LEFT_STANDING


def test_a_gdb_is_not_ended_without_consent(server: Server, client: Client) -> None:
    with Gdb(server.pid) as gdb:
        gdb.until_prompt()
        for options, words in (((), "is held by gdb"), (("--end-tracer",), "without a terminal")):
            result = innoscope("unstick", "--pid", server.pid, *options)

            lines = result.stderr.splitlines()
            assert result.returncode == ChangeRefused.exit_code
            assert any(line.startswith("innoscope: ") and words in line for line in lines), lines
            assert "--end-tracer" in lines[-1]
            assert f"gdb, pid {gdb.pid}, of root" in result.stdout
            assert not gdb.ended
            assert {thread.tracer for thread in threads(server.pid)} == {gdb.pid}
        gdb.type("detach")
        client.answered_at()


def test_a_gdb_at_its_prompt_is_ended(server: Server, client: Client) -> None:
    with Gdb(server.pid) as gdb:
        gdb.until_prompt()

        document = _rescued(server, client, "--end-tracer", "--yes")

        assert gdb.process.wait(DEADLINE_S) is not None
    [tracer] = document["found"]["tracers"]
    assert (tracer["pid"], tracer["name"]) == (gdb.pid, "gdb")
    assert str(server.pid) in tracer["command"]
    assert abs(tracer["started"] - time.time()) < DEADLINE_S
    assert document["found"]["traced"] == document["found"]["threads"]


def test_a_gdb_that_reads_symbols_is_ended(server: Server, client: Client) -> None:
    """Check that gdb is ended even while it reads symbols, ignores SIGTERM and uses all CPUs."""
    with Gdb(server.pid) as gdb:
        gdb.until_all_stopped()

        _rescued(server, client, "--end-tracer", "--yes")

        assert gdb.process.wait(DEADLINE_S) is not None


def test_a_suspended_gdb_is_ended(server: Server, client: Client) -> None:
    with Gdb(server.pid) as gdb:
        gdb.until_prompt().suspend()

        document = _rescued(server, client, "--end-tracer", "--yes")

        assert document["found"]["tracers"][0]["stopped"] is True
        assert gdb.process.wait(DEADLINE_S) is not None


def test_a_gdb_that_lets_the_server_run_is_not_ended(server: Server, client: Client) -> None:
    with Gdb(server.pid) as gdb:
        gdb.until_prompt().type("continue")
        client.answered_at()
        guard = _start("--pid", server.pid, "--watch", 1)

        result = innoscope("unstick", "--pid", server.pid, "--end-tracer", "--yes")

        assert result.returncode == 0, result.stderr
        assert "the server is traced, but running" in result.stdout
        with pytest.raises(subprocess.TimeoutExpired):
            guard.wait(2.5)
        guard.send_signal(signal.SIGINT)
        guard.communicate(timeout=DEADLINE_S)
        assert not gdb.ended
        gdb.kill()
    assert well(server.pid)


def test_a_gdb_that_started_the_server_is_never_ended(tmp_path: Path) -> None:
    with Pretender(tmp_path) as pretender:
        executable = str(pretender.executable)
    with Gdb(0, "-ex", "starti", "--args", executable, "600") as gdb:
        gdb.until_prompt()
        pid = next(
            int(entry)
            for entry in os.listdir("/proc")  # noqa: PTH208
            if entry.isdecimal() and _parent(int(entry)) == gdb.pid
        )

        result = innoscope("unstick", "--pid", pid, "--end-tracer", "--yes")

        assert_one_clear_error(result, ChangeRefused.exit_code, "which started it")
        assert not gdb.ended
        gdb.type("kill", "quit")
        gdb.process.wait(DEADLINE_S)


def _parent(pid: int) -> int:
    result = subprocess.run(
        ["ps", "-o", "ppid=", "-p", str(pid)], capture_output=True, text=True, check=False
    )
    return int(result.stdout or 0)


def _stopped_by_signal(server: Server) -> Gdb | None:
    os.kill(server.pid, signal.SIGSTOP)
    until(lambda: all(thread.stopped for thread in threads(server.pid)))  # so that no thread can respond
    return None


def _stopped_by_gdb(server: Server) -> Gdb | None:
    return Gdb(server.pid).until_traced()


@pytest.mark.parametrize(
    "stop", few([_stopped_by_signal, _stopped_by_gdb], _stopped_by_gdb, reason="gdb is the harder case")
)
def test_the_guard_rescues_after_the_given_time(
    server: Server, client: Client, stop: Callable[[Server], Gdb | None]
) -> None:
    guard = _start("--pid", server.pid, "--watch", WATCH_S)
    assert guard.stdout is not None
    assert "watching process" in guard.stdout.readline()
    before = time.monotonic()
    gdb = stop(server)
    stopped = time.monotonic()  # it was stopped between the two times
    try:
        if gdb:
            gdb.until_all_stopped()
        served = client.answered_at()

        assert "SIGCONT to the server" in [guard.stdout.readline() for _ in range(3 if gdb else 2)][-1]
        assert well(server.pid)
        assert guard.poll() is None, "the guard has exited"
        assert [entry.outcome for entry in Journal().entries()] == ["done"]
        assert served - before > WATCH_S
        assert served - stopped <= WATCH_S + 1
    finally:
        guard.send_signal(signal.SIGINT)
        guard.communicate(timeout=DEADLINE_S)
        if gdb:
            gdb.__exit__()
    assert guard.returncode == INTERRUPTED


def test_the_guard_ends_with_its_server(tmp_path: Path) -> None:
    with Pretender(tmp_path) as pretender:
        guard = _start("--pid", pretender.pid, "--watch", WATCH_S)
        assert guard.stdout is not None
        assert "watching process" in guard.stdout.readline()
        pretender.kill()
        _, errors = guard.communicate(timeout=DEADLINE_S)

    assert guard.returncode == NoSuchProcess.exit_code
    assert "has exited" in errors


def test_missing_privileges_are_reported(server: Server) -> None:
    result = run(nobody("unstick", "--pid", server.pid))

    assert_one_clear_error(result, NoRights.exit_code, str(server.pid))


def test_a_rescue_is_in_the_history(server: Server, client: Client) -> None:
    os.kill(server.pid, signal.SIGSTOP)
    until(lambda: is_stopped(server.pid))
    assert _rescued(server, client)["rescue"]["journal"] is None

    result = innoscope("toggle", "history", "--json", "--pid", server.pid)
    [entry] = json.loads(result.stdout)
    assert (entry["toggle"], entry["way"], entry["outcome"]) == ("unstick", "signal", "done")
    assert entry["server"]["pid"] == server.pid
    assert entry["who"].startswith("root")
    assert "stopped by a signal" in entry["steps"][0]["setting"]
    assert entry["reason"].startswith("SIGCONT to the server: recovered after 0.")
    assert entry["undo_command"] is None
    shown = innoscope("toggle", "history").stdout
    assert "unstick" in shown
    assert entry["steps"][0]["setting"] in shown
    assert_one_clear_error(innoscope("toggle", "undo", entry["id"]), ChangeRefused.exit_code, "was an action")


def _damaged(folder: Path) -> None:
    (folder / "journal.jsonl").write_bytes(b"?\n?\n")


def _full(folder: Path) -> None:
    (folder / "filler").write_bytes(b"\0" * (64 << 10))


@pytest.mark.parametrize(("spoil", "why"), [(_damaged, "line 1 is damaged"), (_full, "No space left")])
def test_a_rescue_does_not_depend_on_the_journal(
    server: Server, client: Client, state: Path, spoil: Callable[[Path], None], why: str
) -> None:
    state.mkdir(0o700)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k,mode=700", "tmpfs", state], check=True)
    try:
        spoil(state)
        os.kill(server.pid, signal.SIGSTOP)
        until(lambda: is_stopped(server.pid))
        assert why in _rescued(server, client)["rescue"]["journal"]

        os.kill(server.pid, signal.SIGSTOP)
        until(lambda: is_stopped(server.pid))
        result = innoscope("unstick", "--pid", server.pid)
        assert result.returncode == 0
        assert "cannot record this in the journal: " in result.stderr
        assert why in result.stderr
        client.answered_at()
    finally:
        subprocess.run(["umount", state], check=True)
