"""`innoscope watch`: the file comes with the stall, and knows the time before it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from innoscope.diagnose.judging import judge
from innoscope.incident.files import load
from servers import Server
from workloads import Oltp, RowLock

if TYPE_CHECKING:
    from collections.abc import Iterator

INNOSCOPE = str(Path(sys.executable).with_name("innoscope"))
PATIENCE_S = 120
BEFORE_S = 20


@contextlib.contextmanager
def watching(server: Server, folder: Path, *more: str) -> Iterator[subprocess.Popen[str]]:
    command = [
        INNOSCOPE, "watch", "--pid", str(server.pid), "-u", "root", "--dir", str(folder), "--json", *more
    ]  # fmt: skip
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def next_event(process: subprocess.Popen[str]) -> dict[str, Any]:
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, process.stderr and process.stderr.read()
    found: dict[str, Any] = json.loads(line)
    return found


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server("mysql-5.6.24") as one:
        yield one


def test_a_file_comes_with_the_stall_and_knows_the_time_before_it(server: Server, tmp_path: Path) -> None:
    more = ("--trigger", "share.row_lock>0.3", "--before", "60", "--seconds", "4", "--once")
    with watching(server, tmp_path, *more) as watch:
        assert next_event(watch)["event"] == "watching"
        with Oltp(server, 2):
            time.sleep(BEFORE_S + 1)  # what the file is to show
        begun = time.time()
        with RowLock(server, 20):
            events = [next_event(watch), next_event(watch)]
        assert watch.wait(PATIENCE_S) == 0
    assert [event["event"] for event in events] == ["triggered", "captured"]
    assert events[1]["findings"][0]["name"] == "row_lock_convoy"

    [path] = tmp_path.iterdir()
    assert str(path) == events[1]["file"]
    assert path.stat().st_mode & 0o777 == 0o600
    capture = load(path)
    assert capture.trigger is not None
    assert capture.trigger.startswith("share.row_lock>0.3 (")
    before = capture.before
    assert before is not None
    assert begun - before.looks[0].at >= BEFORE_S
    assert len(before.looks) >= BEFORE_S / 2
    assert before.threads(clients=True)["row_lock"] == 0
    assert before.ended < capture.evidence.begun
    assert len(before.snapshots) >= BEFORE_S / 2
    assert capture.evidence.threads(clients=True)["row_lock"] >= 20
    found = judge(capture.evidence).findings
    assert found[0].name == "row_lock_convoy"
    assert found[0].blockers


def test_interrupted_it_leaves_nothing(server: Server, tmp_path: Path) -> None:
    more = ("--trigger", "threads_busy>=1", "--for", "0", "--seconds", "60", "--no-probes")
    with watching(server, tmp_path, *more) as watch:
        assert next_event(watch)["event"] == "watching"
        with RowLock(server, 2):
            assert next_event(watch)["event"] == "triggered"
            os.kill(watch.pid, signal.SIGINT)
            assert watch.wait(PATIENCE_S) == 130
    assert list(tmp_path.iterdir()) == []


def test_it_goes_on_with_a_server_that_is_restarted(server: Server, tmp_path: Path) -> None:
    with contextlib.ExitStack() as stack:
        watch = stack.enter_context(
            watching(server, tmp_path, "--trigger", "threads.row_lock>=3", "--seconds", "1", "--no-probes")
        )
        assert next_event(watch)["event"] == "watching"
        before = server.pid
        server.kill()
        assert next_event(watch)["event"] == "ended"
        server.start()
        again = next_event(watch)
        assert (again["event"], again["pid"]) == ("watching", server.pid)
        assert server.pid != before
        stack.enter_context(RowLock(server, 5))
        assert [next_event(watch)["event"] for _ in range(2)] == ["triggered", "captured"]
