"""The engine over a made-up core: interning, classes, notes, and a process that goes away."""

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
from innoscope.sampling.fold import Report
from innoscope.sampling.model import Frame, Trust
from innoscope.sampling.snapshot_series import take_snapshots
from innoscope.target.model import Query
from innoscope.target.symbols.advice import remedy
from unit.dumps import dump, mixed, target, thread

if TYPE_CHECKING:
    from pathlib import Path

    from innoscope.sampling.model import Dump

IDLE = (Frame("poll", "libc.so.6", 16), Frame("vio_io_wait", "mysqld", 32), Frame("do_command", "mysqld", 64))
SYNC = (Frame("fsync", "libc.so.6", 16), Frame(None, "mysqld", 32))
FUTEX_CALL, FSYNC_CALL = 202, 74


@dataclass(frozen=True)
class FakeThread:
    """As ``_native.RawThread``."""

    tid: int
    ns_tid: int
    comm: str
    state: str
    trust: str
    stack: int
    syscall: int
    argument: int


@dataclass
class FakeLook:
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
    """Gives the prepared looks, the last one for ever."""

    method = "bpf"

    def __init__(self, *looks: FakeLook) -> None:
        self.looks = list(looks)
        self.asked = 0

    def look(self) -> Any:
        return self.looks.pop(0) if len(self.looks) > 1 else self.looks[0]

    def modules(self) -> Any:
        self.asked += 1
        return [FakeModule("/usr/sbin/mysqld")]


def raw(
    tid: int, stack: int = 1, *, state: str = "S", trust: str = "exact", call: int = -1, arg: int = 0
) -> Any:
    return FakeThread(tid, tid + 1000, "mysqld", state, trust, stack, call, arg)


@pytest.fixture(autouse=True)
def _alive(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Engine, "_same_process", lambda self: True)


def engine(*looks: FakeLook) -> Engine:
    return Engine.of(target(), FakeProcess(*looks), default_classifier())


def test_threads_are_classified_and_named() -> None:
    look = engine(FakeLook([raw(1), raw(2, state="R", trust="stale")], {1: IDLE})).look()

    assert [(item.tid, item.ns_tid, item.wait, item.trust) for item in look.threads] == [
        (1, 1001, "idle", Trust.EXACT),
        (2, 1002, "on_cpu", Trust.STALE),
    ]
    assert look.duration_ms == 4.8
    assert [frame.label for frame in look.threads[0].frames] == ["poll", "vio_io_wait", "do_command"]


def test_stacks_and_unchanged_threads_are_the_same_objects_at_the_next_look() -> None:
    looks = engine(FakeLook([raw(1), raw(2)], {1: IDLE}), FakeLook([raw(1), raw(2, state="R")], {1: IDLE}))
    first, second = looks.look(), looks.look()

    assert first.threads[0] is second.threads[0]
    assert first.threads[1] is not second.threads[1]
    assert first.threads[1].frames is second.threads[1].frames


def test_each_distinct_situation_is_classified_once(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = engine(FakeLook([raw(tid) for tid in range(50)], {1: IDLE}))
    calls: list[object] = []

    def classify(frames: object, **_: object) -> str:
        calls.append(frames)
        return "idle"

    monkeypatch.setattr(looks._classifier, "classify", classify)

    looks.look()
    looks.look()

    assert calls == [IDLE]


def test_the_file_of_a_system_call_decides_without_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "uname", lambda: type("Name", (), {"machine": "x86_64"})())
    asked: list[set[int]] = []

    def kinds(pid: int, wanted: set[int]) -> dict[int, str]:
        asked.append(wanted)
        return {9: "redo", 10: "binlog"}

    monkeypatch.setattr(descriptors, "kinds", kinds)
    threads = [
        raw(1, call=FSYNC_CALL, arg=9),
        raw(2, call=FSYNC_CALL, arg=10),
        raw(3, call=FUTEX_CALL, arg=9),
    ]

    look = engine(FakeLook(threads, {1: SYNC})).look()

    assert [item.wait for item in look.threads[:2]] == ["fsync_redo", "fsync_binlog"]
    assert asked == [{9, 10}]


def test_a_descriptor_that_now_is_another_file_is_classified_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "uname", lambda: type("Name", (), {"machine": "x86_64"})())
    answers = iter([{9: "redo"}, {9: "data"}])
    monkeypatch.setattr(descriptors, "kinds", lambda pid, wanted: next(answers))
    looks = engine(FakeLook([raw(1, call=FSYNC_CALL, arg=9)], {1: SYNC}))

    assert [looks.look().threads[0].wait for _ in range(2)] == ["fsync_redo", "fsync_data"]


def test_memory_stays_flat(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_module, "SPARE_WAITS", 8)
    looks = engine(*[FakeLook([raw(1, stack)], {stack: IDLE}) for stack in range(100)])
    for _ in range(100):
        looks.look()

    assert len(looks._waits) <= 11
    assert len(looks._last) == 1


def test_missing_names_are_said_once_asked_and_with_a_remedy() -> None:
    process = FakeProcess(FakeLook([raw(1)], {1: SYNC}))
    looks = Engine.of(target(), process, default_classifier())

    notes = looks.look().notes
    looks.look()

    assert process.asked == 1
    assert "100 % of mysqld's frames have no name (stripped" in notes[0]
    assert "DEBUGINFOD_URLS" in notes[0]


def test_a_reused_pid_is_no_such_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Engine, "_same_process", lambda self: False)
    with pytest.raises(NoSuchProcess, match="4242"):
        engine(FakeLook([raw(1)], {1: IDLE})).look()


def test_a_process_without_threads_is_gone() -> None:
    with pytest.raises(NoSuchProcess):
        engine(FakeLook([], {})).look()


def test_queries_are_attached_by_the_id_inside_the_servers_namespace() -> None:
    query = Query(1, "app", None, None, "Query", None, 0, "SELECT ?")
    looks = engine(FakeLook([raw(1), raw(2)], {1: IDLE}))

    look = attach_queries(looks.look(), {1002: query, 1: query})

    assert [item.query for item in look.threads] == [None, query]


class Eyes:
    """Gives dumps and raises errors, in order."""

    def __init__(self, *looks: Dump | BaseException) -> None:
        self.looks = list(looks)

    def look(self) -> Dump:
        item = self.looks.pop(0)
        if isinstance(item, BaseException):
            raise item
        return item


def test_many_looks_are_gathered() -> None:
    report = Report(target())
    seen: list[Dump] = []
    numbers: list[int] = []

    error = take_snapshots(
        Eyes(mixed(), mixed()), report, count=2, interval_s=0, each=seen.append, progress=numbers.append
    )

    assert (error, report.looks, len(seen), numbers) == (None, 2, 2, [1, 2])


@pytest.mark.parametrize("end", [KeyboardInterrupt(), NoSuchProcess("process 4242 has ended")])
def test_what_was_gathered_survives_an_early_end(end: BaseException) -> None:
    report = Report(target())

    error = take_snapshots(Eyes(mixed(), end), report, count=5, interval_s=0)

    assert error is (end if isinstance(end, InnoscopeError) else None)
    assert report.looks == 1
    assert report.ended is not None
    assert "1 of 5 snapshots" in report.ended


@pytest.mark.parametrize("end", [KeyboardInterrupt(), NoSuchProcess("process 4242 has ended")])
def test_an_end_before_the_first_look_comes_through(end: BaseException) -> None:
    with pytest.raises(type(end)):
        take_snapshots(Eyes(end), Report(target()))


def test_a_server_that_does_not_answer_is_asked_once_and_said() -> None:
    report, asked = Report(target()), []

    def ask() -> dict[int, Query]:
        asked.append(1)
        raise SqlFailed("no SQL: too many connections", remedy="leave out --queries")

    take_snapshots(Eyes(dump(thread(1)), dump(thread(1))), report, count=2, interval_s=0, fetch_queries=ask)

    assert asked == [1]
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
def test_the_remedy_for_missing_names_fits_the_servers_distribution(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, release: str, executable: str, root: str, advice: str
) -> None:
    monkeypatch.delenv("DEBUGINFOD_URLS", raising=False)
    if release:
        (tmp_path / "etc").mkdir()
        (tmp_path / "etc/os-release").write_text(release)

    assert advice in remedy(target(executable=executable, root=root), str(tmp_path))
