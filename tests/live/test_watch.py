"""`innoscope watch`: the file comes with the stall, and knows the time before it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from innoscope.diagnose.judging import judge
from innoscope.incident.files import load
from safety.command import INNOSCOPE
from safety.leftovers import breakpoints
from servers import Server
from workloads import Oltp, RowLock

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

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


@dataclass(frozen=True)
class Calm:
    """A server that is busy and well, watched since ``begun``."""

    server: Server
    watch: subprocess.Popen[str]
    folder: Path
    begun: float


@pytest.fixture(scope="module")
def calm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Calm]:
    folder = tmp_path_factory.mktemp("stalls")
    more = ("--trigger", "share.row_lock>0.3", "--before", "60", "--for", "1", "--seconds", "3", "--once")
    with Server("mysql-5.6.24") as server, Oltp(server, 2), watching(server, folder, *more) as watch:
        assert next_event(watch)["event"] == "watching"
        yield Calm(server, watch, folder, time.time())


@pytest.fixture(scope="module")
def server(calm: Calm) -> Iterator[Server]:
    """Another one, for what there is to do while the calm one becomes older."""
    del calm
    with Server("mysql-5.6.24") as one:
        yield one


def test_interrupted_it_leaves_nothing(server: Server, tmp_path: Path) -> None:
    more = ("--trigger", "threads_busy>=1", "--for", "0", "--seconds", "60")
    with watching(server, tmp_path, *more) as watch:
        assert next_event(watch)["event"] == "watching"
        with RowLock(server, 2):
            assert next_event(watch)["event"] == "triggered"
            os.kill(watch.pid, signal.SIGINT)
            assert watch.wait(PATIENCE_S) == 130
    assert list(tmp_path.iterdir()) == []
    assert breakpoints(server.pid) == set()


def test_it_goes_on_with_a_server_that_is_restarted(server: Server, tmp_path: Path) -> None:
    more = ("--trigger", "threads.row_lock>=3", "--for", "0", "--seconds", "1", "--no-probes")
    with watching(server, tmp_path, *more) as watch:
        assert next_event(watch)["event"] == "watching"
        before = server.pid
        server.kill()
        assert next_event(watch)["event"] == "ended"
        server.start()
        again = next_event(watch)
        assert (again["event"], again["pid"]) == ("watching", server.pid)
        assert server.pid != before
        with RowLock(server, 5):
            assert [next_event(watch)["event"] for _ in range(2)] == ["triggered", "captured"]


def test_a_file_comes_with_the_stall_and_knows_the_time_before_it(calm: Calm) -> None:
    time.sleep(max(0.0, calm.begun + BEFORE_S + 1 - time.time()))  # what the file is to show
    stalls = time.time()
    with RowLock(calm.server, 20):
        events = [next_event(calm.watch), next_event(calm.watch)]
    assert calm.watch.wait(PATIENCE_S) == 0
    assert [event["event"] for event in events] == ["triggered", "captured"]
    assert events[1]["findings"][0]["name"] == "row_lock_convoy"

    [path] = calm.folder.iterdir()
    assert str(path) == events[1]["file"]
    assert path.stat().st_mode & 0o777 == 0o600
    capture = load(path)
    assert capture.trigger is not None
    assert capture.trigger.startswith("share.row_lock>0.3 (")
    assert capture.status is not None
    assert capture.variables["version"]
    before = capture.before
    assert before is not None
    assert stalls - before.looks[0].at >= BEFORE_S
    assert len(before.looks) >= BEFORE_S / 2
    assert before.threads(clients=True)["row_lock"] == 0
    assert before.ended < capture.evidence.begun
    assert len(before.snapshots) >= BEFORE_S / 2
    assert capture.evidence.threads(clients=True)["row_lock"] >= 20
    found = judge(capture.evidence).findings
    assert found[0].name == "row_lock_convoy"
    assert found[0].blockers


def test_a_rule_of_nothing_that_there_is(tmp_path: Path) -> None:
    command = [INNOSCOPE, "watch", "--trigger", "threads_runing>5", "--dir", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "did you mean threads_running?" in done.stderr
