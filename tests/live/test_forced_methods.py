"""Test the sensor, top, watch and the history with the fallback snapshot methods that stop no threads."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from innoscope.diagnose.incident.files import load
from innoscope.sampling.recording import Recording
from live.row_lock_waits import waited_s
from safety.agenting import Running
from safety.command import innoscope
from safety.privileges import without_bpf
from safety.sensing import Sensing, outcome, values
from servers import Server
from snapshot_methods import STOPPING_NOTHING
from workloads import RowLock

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from innoscope.daemon.protocol.messages import ServerReply

WAITERS = 10
CONVOY_S = 5
#: Methods that ``auto`` does not choose on the kernels that run the tests.
FALLBACKS = STOPPING_NOTHING[1:]


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """Yield a server with a lock convoy."""
    with Server("mysql-5.6.24") as server, RowLock(server, WAITERS):
        yield server


def waiting(reply: ServerReply) -> bool:
    return (
        outcome(reply, "waits").success
        and values(reply, "waits")["threads", ("row_lock", "client")] == WAITERS
    )


@pytest.mark.parametrize("method", FALLBACKS)
def test_sensor_copies_stacks_by_the_chosen_method(server: Server, method: str) -> None:
    with Sensing("--no-probes", "--method", method, only=[server]) as sensing:
        reply = sensing.until(server, waiting)
        log = sensing.log

    assert f"snapshots by method {method}" in log
    inferred = values(reply, "waits")["thread_samples", ("inferred",)]
    assert (inferred != 0) == (method == "procfs")  # only procfs has to infer frame pointers


def test_sensor_refuses_to_stop_threads() -> None:
    done = innoscope("sensor", "--method", "ptrace")

    assert done.returncode == 2
    assert "'ptrace' is not one of 'auto', 'bpf', 'bpf-nosleep', 'procfs'" in done.stderr


@pytest.mark.parametrize("method", FALLBACKS)
def test_top_records_by_the_chosen_method(server: Server, tmp_path: Path, method: str) -> None:
    file = tmp_path / "top"
    done = innoscope("top", "--pid", server.pid, "--record", file, "--duration", "2", "--method", method)

    assert done.returncode == 0, done.stderr
    recording = Recording(file)
    last = recording.snapshot(len(recording) - 1)
    assert last.method == method
    assert sum(thread.wait == "row_lock" for thread in last.threads) == WAITERS


def test_watch_captures_a_stall_without_bpf(server: Server, tmp_path: Path) -> None:
    done = innoscope(
        "watch", "--pid", server.pid, "-u", "root", "--dir", tmp_path, "--trigger", "share.row_lock>0.3",
        "--for", 0, "--seconds", 3, "--once", "--no-probes", under=without_bpf(),
    )  # fmt: skip

    assert done.returncode == 0, done.stderr
    [file] = tmp_path.iterdir()
    capture = load(file)
    assert capture.verdict["findings"][0]["name"] == "row_lock_convoy"
    assert capture.evidence.snapshots
    assert capture.evidence.threads(clients=True)["row_lock"] == WAITERS * len(capture.evidence.snapshots)


def test_history_is_recorded_by_procfs(server: Server) -> None:
    with (
        Sensing("--no-probes", "--method", "procfs", only=[server]) as sensing,
        Running(server, sensor=sensing.path) as agent,
    ):
        agent.until(
            lambda scrape: scrape.value("threads", wait="row_lock", kind="client") == WAITERS, patience=60
        )
        agent.until(lambda scrape: waited_s(scrape) >= CONVOY_S * WAITERS, patience=60)
        agent.until_recorded()
        agent.terminate()
        done = innoscope("history", "5m", "--by", "wait", "--dir", agent.history, "--json")

    assert done.returncode == 0, done.stderr
    by_wait = {group["wait"]: group["seconds"] for group in json.loads(done.stdout)["groups"]}
    assert by_wait["row_lock"] > (CONVOY_S - 2) * WAITERS
