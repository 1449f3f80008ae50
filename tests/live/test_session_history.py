"""Test the active session history of a real server during a lock convoy and on a full disk."""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from innoscope import _native
from innoscope.sampling.sessions import files
from innoscope.sampling.sessions.store import HistoryLimits, HistoryStore
from live.row_lock_waits import waited_s
from safety.agenting import Running
from safety.command import innoscope
from safety.sensing import Sensing
from servers import Server
from unit.session_samples import START, Clock, batch, rows
from workloads import RowLock

if TYPE_CHECKING:
    from collections.abc import Iterator


WAITERS = 25
CONVOY_S = 12


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server("mysql-5.6.24") as server:
        yield server


def seconds(history: Path, table: str, by: str) -> dict[object, float]:
    """Return the seconds in a table, grouped by a column."""
    paths = [part.file(table) for part in files.live_parts(history) if part.file(table).exists()]
    groups, _, _, failed = _native.history_group(
        table, paths, span=(0, 1 << 62), by=[by], filters=[], most_groups=1_000
    )
    assert failed == []
    return {key[0]: weight for key, weight, _ in groups}


def test_lock_convoy_has_the_seconds_of_the_metric(server: Server) -> None:
    with Sensing(only=[server]) as sensing, Running(server, sensor=sensing.path) as agent:
        agent.until(
            lambda scrape: scrape.value("thread_seconds_total", wait="row_lock") is not None, patience=60
        )
        with RowLock(server, WAITERS):
            agent.until(lambda scrape: waited_s(scrape) >= CONVOY_S * WAITERS, patience=60)
        # the threads have left the wait class, so the metric has its final value
        agent.until(lambda scrape: scrape.value("threads", wait="row_lock", kind="client") == 0, patience=60)
        total = agent.scrape().value("thread_seconds_total", wait="row_lock")
        assert agent.scrape().value("history_up") == 1
        agent.until_recorded()
        agent.terminate()
        by_wait = seconds(agent.history, "samples", "wait")
        observed = seconds(agent.history, "snapshots", "server")
        done = innoscope("history", "5m", "--by", "wait", "--dir", agent.history, "--json")

    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    by_command = {group["wait"]: group["seconds"] for group in answer["groups"]}
    assert by_command["row_lock"] == pytest.approx(by_wait["row_lock"], abs=0.01)
    assert answer["observed_seconds"]["under test"] == pytest.approx(observed["under test"], abs=0.01)
    assert total is not None
    assert total > (CONVOY_S - 2) * WAITERS
    assert by_wait["row_lock"] == pytest.approx(total, abs=0.01)
    assert list(observed) == ["under test"]
    assert observed["under test"] > CONVOY_S


@pytest.fixture
def small_disk() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="innoscope-full-"))
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k,mode=700", "innoscope-test", folder], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", folder], check=True)
        folder.rmdir()


def test_full_disk_is_reported_and_the_history_goes_on_when_there_is_space(small_disk: Path) -> None:
    clock = Clock()
    store = HistoryStore(small_disk / "history", HistoryLimits(part_rows=100), clock, clock)
    store.prepare()
    other = small_disk / "other"
    other.write_bytes(bytes(200 << 10))
    for second in range(2_000):
        clock.now = START + second
        store.add("orders", batch(clock.now))
        store.tick()
    assert store.counts.failure is not None
    assert "No space left on device" in store.counts.failure
    assert store.counts.failures > 0
    assert store.counts.lost_rows > 0
    assert not any(path.name.startswith(".2") for path in (small_disk / "history").iterdir())
    before = rows(small_disk / "history")
    assert set(before.values()) <= {1}
    other.unlink()
    for second in range(2_000, 2_400):
        clock.now = START + second
        store.add("orders", batch(clock.now))
        store.tick()
    assert store.counts.failure is None
    after = rows(small_disk / "history")
    assert len(after) > len(before)
    assert set(after.values()) == {1}
    shutil.rmtree(small_disk / "history")
