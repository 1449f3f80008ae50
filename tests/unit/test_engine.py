"""Test the snapshot engine with a fake core: reused stacks and threads, wait classes, notes, and errors."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

from innoscope.common.errors import InnoscopeError, NoSuchProcess, SqlFailed
from innoscope.sampling import descriptors
from innoscope.sampling import engine as engine_module
from innoscope.sampling.classify import default_classifier
from innoscope.sampling.engine import Engine, attach_queries
from innoscope.sampling.fold import StackReport
from innoscope.sampling.model import Frame, Trust
from innoscope.sampling.snapshot_series import take_snapshots
from innoscope.target.model import Query
from innoscope.target.symbols.advice import remedy
from unit.snapshots import mixed, snapshot_of, target, thread

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from innoscope.sampling.model import Snapshot

IDLE = (Frame("poll", "libc.so.6", 16), Frame("vio_io_wait", "mysqld", 32), Frame("do_command", "mysqld", 64))
SYNC = (Frame("fsync", "libc.so.6", 16), Frame(None, "mysqld", 32))
FUTEX_CALL, FSYNC_CALL = 202, 74


@dataclass(frozen=True)
class FakeThread:
    """A stand-in for ``_native.RawThread``."""

    tid: int
    ns_tid: int
    comm: str
    state: str
    trust: str
    stack: int
    syscall: int
    argument: int


@dataclass
class FakeSnapshot:
    threads: list[Any]
    stacks: dict[int, Any]
    method: str = "bpf"
    copy_ns: int = 4_800_000
    notes: list[str] = field(default_factory=list)
    shallow: int = 0


@dataclass
class FakeModule:
    path: str
    symbols_from: str = "dynsym"
    problem: str | None = None
    build_id: str | None = None


class FakeProcess:
    """A fake process that returns the prepared snapshots in order and then repeats the last one."""

    method = "bpf"

    def __init__(self, *snapshots: FakeSnapshot) -> None:
        self.snapshots = list(snapshots)
        self.module_queries = 0

    def take_snapshot(self) -> Any:
        return self.snapshots.pop(0) if len(self.snapshots) > 1 else self.snapshots[0]

    def run_counts(self, _: Sequence[int]) -> dict[int, int]:
        return {}

    def copied_run_counts(self, _: Sequence[int]) -> dict[int, int]:
        return {}

    def modules(self) -> Any:
        self.module_queries += 1
        return [FakeModule("/usr/sbin/mysqld")]


def raw(
    tid: int, stack: int = 1, *, state: str = "S", trust: str = "exact", call: int = -1, arg: int = 0
) -> Any:
    return FakeThread(tid, tid + 1000, "mysqld", state, trust, stack, call, arg)


@pytest.fixture(autouse=True)
def _alive(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Engine, "_same_process", lambda self: True)


def engine(*snapshots: FakeSnapshot) -> Engine:
    return Engine.of(target(), FakeProcess(*snapshots), default_classifier())


def test_threads_are_classified_and_named() -> None:
    found = engine(FakeSnapshot([raw(1), raw(2, state="R", trust="stale")], {1: IDLE})).take_snapshot()

    assert [(item.tid, item.ns_tid, item.wait, item.trust) for item in found.threads] == [
        (1, 1001, "idle", Trust.EXACT),
        (2, 1002, "on_cpu", Trust.STALE),
    ]
    assert found.duration_ms == 4.8
    assert [frame.label for frame in found.threads[0].frames] == ["poll", "vio_io_wait", "do_command"]


def test_stacks_and_unchanged_threads_are_shared_between_snapshots() -> None:
    source = engine(
        FakeSnapshot([raw(1), raw(2)], {1: IDLE}), FakeSnapshot([raw(1), raw(2, state="R")], {1: IDLE})
    )
    first, second = source.take_snapshot(), source.take_snapshot()

    assert first.threads[0] is second.threads[0]
    assert first.threads[1] is not second.threads[1]
    assert first.threads[1].frames is second.threads[1].frames


def test_each_distinct_stack_and_state_is_classified_once(monkeypatch: pytest.MonkeyPatch) -> None:
    source = engine(FakeSnapshot([raw(tid) for tid in range(50)], {1: IDLE}))
    calls: list[object] = []

    def classify(frames: object, **_: object) -> str:
        calls.append(frames)
        return "idle"

    monkeypatch.setattr(source._classifier, "classify", classify)

    source.take_snapshot()
    source.take_snapshot()

    assert calls == [IDLE]


def test_file_of_a_system_call_classifies_without_symbols(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "uname", lambda: type("Name", (), {"machine": "x86_64"})())
    queries: list[set[int]] = []

    def kinds(pid: int, wanted: set[int]) -> dict[int, str]:
        queries.append(wanted)
        return {9: "redo", 10: "binlog"}

    monkeypatch.setattr(descriptors, "kinds", kinds)
    threads = [
        raw(1, call=FSYNC_CALL, arg=9),
        raw(2, call=FSYNC_CALL, arg=10),
        raw(3, call=FUTEX_CALL, arg=9),
    ]

    found = engine(FakeSnapshot(threads, {1: SYNC})).take_snapshot()

    assert [item.wait for item in found.threads[:2]] == ["fsync_redo", "fsync_binlog"]
    assert queries == [{9, 10}]


def test_descriptor_that_became_another_file_is_classified_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "uname", lambda: type("Name", (), {"machine": "x86_64"})())
    answers = iter([{9: "redo"}, {9: "data"}])
    monkeypatch.setattr(descriptors, "kinds", lambda pid, wanted: next(answers))
    source = engine(FakeSnapshot([raw(1, call=FSYNC_CALL, arg=9)], {1: SYNC}))

    assert [source.take_snapshot().threads[0].wait for _ in range(2)] == ["fsync_redo", "fsync_data"]


def test_number_of_cached_stacks_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_module, "SPARE_WAITS", 8)
    source = engine(*[FakeSnapshot([raw(1, stack)], {stack: IDLE}) for stack in range(100)])
    for _ in range(100):
        source.take_snapshot()

    assert len(source._waits) <= 11
    assert len(source._last) == 1


def test_missing_symbols_are_a_note_with_a_remedy() -> None:
    process = FakeProcess(FakeSnapshot([raw(1)], {1: SYNC}))
    source = Engine.of(target(), process, default_classifier())

    notes = source.take_snapshot().notes
    source.take_snapshot()

    assert process.module_queries == 1
    assert "100 % of mysqld's frames are shown without names (stripped" in notes[0]
    assert "DEBUGINFOD_URLS" in notes[0]


def test_process_without_threads_or_with_a_reused_pid_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(NoSuchProcess):
        engine(FakeSnapshot([], {})).take_snapshot()
    monkeypatch.setattr(Engine, "_same_process", lambda self: False)
    with pytest.raises(NoSuchProcess, match="4242"):
        engine(FakeSnapshot([raw(1)], {1: IDLE})).take_snapshot()


def test_queries_are_attached_by_the_thread_id_in_the_servers_namespace() -> None:
    query = Query(1, "app", None, None, "Query", None, 0, "SELECT ?")
    source = engine(FakeSnapshot([raw(1), raw(2)], {1: IDLE}))

    found = attach_queries(source.take_snapshot(), {1002: query, 1: query})

    assert [item.query for item in found.threads] == [None, query]


class FakeEngine:
    """A fake snapshot engine that returns the given snapshots and raises the given errors in order."""

    def __init__(self, *results: Snapshot | BaseException) -> None:
        self.results = list(results)

    def take_snapshot(self) -> Snapshot:
        item = self.results.pop(0)
        if isinstance(item, BaseException):
            raise item
        return item


def test_snapshots_are_added_to_the_report() -> None:
    report = StackReport(target())
    snapshots: list[Snapshot] = []
    numbers: list[int] = []

    error = take_snapshots(
        FakeEngine(mixed(), mixed()),
        report,
        count=2,
        interval_s=0,
        each=snapshots.append,
        progress=numbers.append,
    )

    assert (error, report.snapshots, len(snapshots), numbers) == (None, 2, 2, [1, 2])


@pytest.mark.parametrize("end", [KeyboardInterrupt(), NoSuchProcess("process 4242 has exited")])
def test_early_end_leaves_the_snapshots_so_far(end: BaseException) -> None:
    report = StackReport(target())

    error = take_snapshots(FakeEngine(mixed(), end), report, count=5, interval_s=0)

    assert error is (end if isinstance(end, InnoscopeError) else None)
    assert report.snapshots == 1
    assert report.ended is not None
    assert "1 of 5 snapshots" in report.ended


@pytest.mark.parametrize("end", [KeyboardInterrupt(), NoSuchProcess("process 4242 has exited")])
def test_end_before_the_first_snapshot_is_raised(end: BaseException) -> None:
    with pytest.raises(type(end)):
        take_snapshots(FakeEngine(end), StackReport(target()))


def test_failed_query_of_statements_is_a_note_and_not_repeated() -> None:
    report, calls = StackReport(target()), []

    def fetch() -> dict[int, Query]:
        calls.append(1)
        raise SqlFailed("no SQL: too many connections", remedy="leave out --queries")

    source = FakeEngine(snapshot_of(thread(1)), snapshot_of(thread(1)))
    take_snapshots(source, report, count=2, interval_s=0, fetch_queries=fetch)

    assert calls == [1]
    assert list(report.notes) == ["no queries: no SQL: too many connections (leave out --queries)"]


@pytest.mark.parametrize(
    ("release", "executable", "root", "advice"),
    [
        ("ID=debian", "/usr/sbin/mysqld", "/", "apt install mysql-server-core-dbgsym"),
        ("ID=debian", "/srv/sid/usr/sbin/mysqld", "/srv/sid", "apt install mysql-server-core-dbgsym"),
        (
            'ID="rocky"\nID_LIKE="rhel fedora"',
            "/usr/sbin/mysqld",
            "/",
            "dnf debuginfo-install mysql-community",
        ),
        ("ID=debian", "/opt/mysql/bin/mysqld", "/", "/usr/lib/debug/.build-id/ab/"),
        ("", "/usr/sbin/mysqld", "/", "/usr/lib/debug/.build-id/ab/"),
    ],
)
def test_remedy_for_missing_symbols_fits_the_distribution(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, release: str, executable: str, root: str, advice: str
) -> None:
    monkeypatch.delenv("DEBUGINFOD_URLS", raising=False)
    if release:
        (tmp_path / "etc").mkdir()
        (tmp_path / "etc/os-release").write_text(release)

    assert advice in remedy(target(executable=executable, root=root), str(tmp_path))
