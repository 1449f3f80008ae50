"""Recorders keep their history in bounded memory, and the directory of incident files is bounded."""

from __future__ import annotations

import os
import resource
import threading
import tracemalloc
from functools import cache
from typing import TYPE_CHECKING, Any

import pytest

from innoscope.common.errors import CannotWrite
from innoscope.common.samples import Sample
from innoscope.daemon.protocol.messages import BadMessage
from innoscope.daemon.protocol.stack_encoding import decode_snapshots, encode_snapshots
from innoscope.diagnose.evidence import Evidence
from innoscope.diagnose.incident.files import load
from innoscope.diagnose.incident.model import Capture, CaptureOrigin
from innoscope.diagnose.metric_readings import ReadingHistory
from innoscope.diagnose.watch.folder import FolderLimits, IncidentFolder
from innoscope.metrics.collectors.errors import CollectorFailed
from innoscope.sampling.model import Frame, Trust
from innoscope.sampling.profile_history import ClassifiedStack
from innoscope.sampling.snapshot_history import CLIENT, ObservedStack, SnapshotHistory, SnapshotSummary

if TYPE_CHECKING:
    from pathlib import Path

WAITING = ("futex", "lock_wait_suspend_thread", "row_search_for_mysql")
#: A server with 1,000 threads. Each snapshot has 250 distinct stacks of 15 functions; between two snapshots,
#: one of the stacks is replaced.
THREADS, STACKS, SPAN_S = 1_000, 250, 90
_MOST_MB = 10


def stack(wait: str, *names: str) -> ClassifiedStack:
    return ClassifiedStack.of(wait, Trust.EXACT, tuple(Frame(name, "mysqld", 1) for name in names))


@cache
def one_of_many(number: int) -> ClassifiedStack:
    return stack("on_cpu", *(f"function_{number}_{depth}" for depth in range(15)))


def busy(at: int) -> list[tuple[str, ClassifiedStack, list[int]]]:
    each = THREADS // STACKS
    return [
        (CLIENT, one_of_many((number + at) % 400), list(range(number * each, (number + 1) * each)))
        for number in range(STACKS)
    ]


def test_any_interval_can_be_read_from_the_history() -> None:
    snapshots = SnapshotHistory(60)
    for at in range(100):
        wait = "row_lock" if at >= 50 else "on_cpu"
        snapshots.add_groups(
            float(at), [(CLIENT, stack(wait, *WAITING), [1, 2, at]), ("purge", stack("purge"), [9])]
        )
    found, seen = snapshots.between(48, 52)
    assert [snapshot.at for snapshot in found] == [48, 49, 50, 51, 52]
    assert found[0].threads == {(CLIENT, "on_cpu"): 3, ("purge", "purge"): 1}
    assert found[0].running == (1, 2, 48)
    assert found[-1].running == ()
    assert seen[0] == ObservedStack(CLIENT, "row_lock", WAITING, 9, (1, 2, 52))
    assert ObservedStack(CLIENT, "on_cpu", WAITING, 6) in seen
    assert [snapshot.at for snapshot in snapshots.since(96)] == [97, 98, 99]
    assert snapshots.between(0, 38) == ((), ())
    assert len(snapshots.between(0, 1000)[0]) == 61


def test_the_history_of_a_busy_server_takes_less_than_10_mb() -> None:
    tracemalloc.start()
    try:
        snapshots = SnapshotHistory(SPAN_S)
        before = tracemalloc.get_traced_memory()[0]
        for at in range(2 * SPAN_S):
            snapshots.add_groups(float(at), busy(at))
        used = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert used < _MOST_MB * 1e6
    assert used / 4 < snapshots.used_bytes < used * 4


def test_snapshots_survive_encoding_for_the_sensor_s_socket() -> None:
    snapshot = SnapshotSummary(
        1.5, {(CLIENT, "row_lock"): 3, ("purge", "purge"): 1}, (7, 8), {"rollback": (7,)}
    )
    seen = (
        ObservedStack(CLIENT, "row_lock", WAITING, 3, (1, 2)),
        ObservedStack("purge", "purge", ("trx_purge", "futex"), 1),
    )
    assert decode_snapshots(encode_snapshots([snapshot], seen)) == ((snapshot,), seen)
    assert decode_snapshots(encode_snapshots([], [])) == ((), ())


@pytest.mark.parametrize(
    "data",
    [
        {},
        {"snapshots": [[1]], "functions": [], "seen": []},
        {"snapshots": [[1.0, [["a", "b"]], [], {}]], "functions": [], "seen": []},
        {"snapshots": [[1.0, [], ["7"], {}]], "functions": [], "seen": []},
        {"snapshots": [[1.0, [], [], []]], "functions": [], "seen": []},
        {"snapshots": [[1.0, [], [], {"rollback": 7}]], "functions": [], "seen": []},
        {"snapshots": [], "functions": ["f"], "seen": [["a", "b", 1]]},
        {"snapshots": [], "functions": ["f"], "seen": [["a", "b", 1, [], 1]]},
        {"snapshots": [], "functions": ["f"], "seen": [["a", "b", 1, [], -1]]},
        {"snapshots": [], "functions": [7], "seen": []},
    ],
)
def test_malformed_snapshots_are_refused(data: Any) -> None:
    with pytest.raises(BadMessage):
        decode_snapshots(data)


class Counting:
    """A collector with one counter, which increases by one at each scrape."""

    name = "sql"
    timeout = 60.0

    def __init__(self) -> None:
        self.count = 0

    def collect(self) -> tuple[Sample, ...]:
        self.count += 1
        return (Sample("statements", self.count),)


def test_old_readings_are_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr("innoscope.diagnose.metric_readings.time.time", lambda: now)
    readings = ReadingHistory([Counting()], 60)
    for _ in range(100):
        readings.read(60)
        now += 1
    snapshots, missing = readings.between(0, 2000)
    readings.close()
    assert len(snapshots) == 61
    assert [one.values["statements"] for one in readings.between(1050, 1052)[0]] == [51, 52, 53]
    assert missing == {}


class Refused:
    """A collector that the server refuses once. Afterwards, it does not answer in time."""

    name = "sql"
    timeout = 60.0

    def __init__(self) -> None:
        self.released = threading.Event()
        self.refused = False

    def collect(self) -> tuple[Sample, ...]:
        if self.refused:
            self.released.wait(60)
        self.refused = True
        raise CollectorFailed("denied", "access denied for innoscope")


def test_timeout_does_not_replace_a_reason_that_says_more() -> None:
    collector = Refused()
    readings = ReadingHistory([collector])
    readings.read(60)
    collector.timeout = 0.01
    readings.read(60)
    _, missing = readings.between(0, float("inf"))
    collector.released.set()
    readings.close()
    assert missing["sql"].reason == "denied"


def capture(pid: int, at: float = 1_700_000_000) -> Capture:
    taken = CaptureOrigin("0", "ann", "db1", "6", at)
    return Capture(taken, Evidence({"flavour": "mysql", "pid": str(pid)}, at, at + 1))


def test_only_the_oldest_incident_files_are_removed(tmp_path: Path) -> None:
    folder = tmp_path / "incidents"
    incidents = IncidentFolder(folder, FolderLimits(files=2))
    incidents.prepare()
    assert folder.stat().st_mode & 0o777 == 0o700
    others = [folder / "mysql-7-20261122T014500Z.innoscope", folder / "stall-notes.txt"]
    for path in others:
        path.write_text("mine")
    (folder / "stall-mysql-1-20200101T000000Z.innoscope").symlink_to(others[0])
    for pid in range(10, 14):
        path = incidents.save(capture(pid))
        os.utime(path, (pid, pid))
    assert [incident.name.split("-")[2] for incident in incidents.incidents()] == ["13", "12"]
    assert all(path.read_text() == "mine" for path in others)
    assert (folder / "stall-mysql-1-20200101T000000Z.innoscope").is_symlink()
    assert load(path).evidence.server["pid"] == "13"


def test_the_newest_file_is_kept_even_if_it_exceeds_the_limit(tmp_path: Path) -> None:
    incidents = IncidentFolder(tmp_path, FolderLimits(files=9, bytes=1))
    for pid in (1, 2):
        path = incidents.save(capture(pid))
        assert [incident.name for incident in incidents.incidents()] == [path.name]


def test_temporary_files_of_a_killed_writer_are_removed(tmp_path: Path) -> None:
    left = tmp_path / ".stall-mysql-7-20261122T014500Z.innoscope.0123abcd.part"
    mine = tmp_path / ".stall-other.part"
    for path in (left, mine):
        path.touch()
    IncidentFolder(tmp_path, FolderLimits()).prepare()
    assert list(tmp_path.iterdir()) == [mine]


def test_a_full_disk_is_an_error(tmp_path: Path) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, limits[1]))
    try:
        with pytest.raises(CannotWrite, match="cannot write in"):
            IncidentFolder(tmp_path, FolderLimits()).prepare()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_created_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(CannotWrite):
        IncidentFolder(tmp_path / "file" / "incident", FolderLimits()).prepare()
    assert IncidentFolder(tmp_path / "nowhere", FolderLimits()).incidents() == []
