"""What goes wrong around a change of a real server: time limits, restarts, a full disk, a broken journal."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from contextlib import ExitStack, closing
from dataclasses import replace
from typing import TYPE_CHECKING

import pymysql
import pytest

from innoscope.common.errors import BadFile, InnoscopeError
from innoscope.toggles import engine
from innoscope.toggles.model import ChangeFailed, Refused
from innoscope.toggles.undo import Overtaken
from safety.command import innoscope
from safety.recovering import DOUBLINGS, ROOMY, TIGHT, make_redo
from safety.toggling import ACCOUNT, CONNECTIONS, READ_AHEAD, Subject
from scale import few, long
from servers import Server

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from safety.toggling import Change

PATIENCE_S = 30
LIMIT_S = 2.0
PAGE = os.sysconf("SC_PAGESIZE")
FEW = 10


@pytest.fixture(scope="module")
def running() -> Iterator[Server]:
    with Server("mysql-5.6.24") as server:
        yield server


@pytest.fixture(autouse=True)
def _journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INNOSCOPE_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("INNOSCOPE_RUN", str(tmp_path / "run"))


@pytest.fixture
def subject(running: Server) -> Subject:
    return Subject(running)


@pytest.fixture
def lone() -> Iterator[Subject]:
    """A server that the test ends, or fills."""
    with Server("mysql-5.6.24") as server:
        yield Subject(server)


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.parametrize("change", [READ_AHEAD, CONNECTIONS], ids=lambda change: change.toggle)
@pytest.mark.parametrize(
    "point", few(["concluded", "written-0"], "written-0", reason="the earlier kill is in make test")
)
def test_a_time_limit_holds_though_the_tool_was_killed(subject: Subject, change: Change, point: str) -> None:
    before = subject.values(change)
    process = subject.set(change, point, LIMIT_S)
    process.communicate(timeout=PATIENCE_S)
    assert process.returncode == -signal.SIGKILL
    assert subject.values(change) != before
    entry = subject.last()
    assert entry is not None
    assert entry.until is not None
    until(lambda: subject.values(change) == before)

    assert time.time() >= entry.until
    until(lambda: (found := subject.last()) is not None and found.outcome == "undone")
    assert subject.journal.entries()[-1].who == "innoscope"


def test_a_time_limit_holds_though_the_server_is_stopped_then(subject: Subject) -> None:
    before = subject.values(READ_AHEAD)
    assert subject.set(READ_AHEAD, "-", LIMIT_S).wait(PATIENCE_S) == 0
    subject.server.process.send_signal(signal.SIGSTOP)
    try:
        until(lambda: (found := subject.last()) is not None and found.notes)
    finally:
        subject.server.process.send_signal(signal.SIGCONT)
    until(lambda: subject.values(READ_AHEAD) == before)


def test_the_rescue_is_undone_while_nobody_can_log_in(lone: Subject) -> None:
    """max_connections raised by memory ends by memory, with every connection taken again."""
    with ExitStack() as crowd:
        first = crowd.enter_context(closing(lone.server.connect()))
        first.cursor().execute(f"SET GLOBAL max_connections = {FEW}")
        _crowd(lone, crowd)
        raised = replace(CONNECTIONS, value=str(FEW + 2), after=(FEW + 2,))
        assert lone.set(raised, "-", LIMIT_S).wait(PATIENCE_S) == 0
        assert _crowd(lone, crowd) == 2
        until(lambda: (found := lone.last()) is not None and found.outcome == "undone")
        with first.cursor() as cursor:
            cursor.execute("SELECT @@global.max_connections")
            assert cursor.fetchone() == (FEW,)


def _crowd(subject: Subject, crowd: ExitStack) -> int:
    """Take every connection that there is, root's spare one too; how many."""
    for taken in range(1000):
        try:
            crowd.enter_context(closing(subject.server.connect()))
        except pymysql.err.OperationalError:
            return taken
    raise AssertionError("there is no limit")


def test_nothing_is_undone_in_a_server_that_was_restarted(lone: Subject) -> None:
    process = lone.set(READ_AHEAD, "-", 600)
    assert process.wait(PATIENCE_S) == 0
    entry = lone.last()
    assert entry is not None
    lone.server.stop()
    lone.server.start()
    before = lone.values(READ_AHEAD)
    for target in (lone.target, None):
        with pytest.raises(Overtaken, match="has ended"):
            engine.undo(target, entry.id, account=ACCOUNT, who="test")

    assert lone.values(READ_AHEAD) == before


@long("it makes a crash recovery of seconds")
def test_a_server_that_recovers_from_a_crash_is_left_alone() -> None:
    with Server("mysql-5.6.24", options=ROOMY) as server:
        make_redo(server, DOUBLINGS - 2)
        _left_alone_while_it_recovers(Subject(server))


def _left_alone_while_it_recovers(lone: Subject) -> None:
    plan = engine.plan(lone.target, "max_connections", "2600", account=ACCOUNT, ways=["memory"])
    before = lone.values(CONNECTIONS)
    lone.server.kill()
    lone.server.options = TIGHT
    lone.server.start(wait=False)
    deadline, said = time.monotonic() + PATIENCE_S, ""
    while "does not listen" not in said:
        assert time.monotonic() < deadline, said
        try:
            engine.apply(lone.target, plan, who="test", account=ACCOUNT)
        except InnoscopeError as error:
            said, remedy = error.what, error.remedy
        else:
            raise AssertionError("it was changed")
    lone.server.wait_ready()

    assert "ready for connections" in str(remedy)
    assert lone.values(CONNECTIONS) == before
    assert lone.last() is None


def test_a_stopped_server_is_left_alone(subject: Subject) -> None:
    plan = engine.plan(subject.target, "max_connections", "2600", account=ACCOUNT, ways=["memory"])
    subject.server.process.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, subject.server.pid, os.WSTOPPED | os.WNOWAIT)
    try:
        with pytest.raises(Refused, match="stopped") as caught:
            engine.apply(subject.target, plan, who="test", account=ACCOUNT)
    finally:
        subject.server.process.send_signal(signal.SIGCONT)

    assert "unstick" in str(caught.value.remedy)
    assert subject.last() is None


def test_without_gdb_memory_is_written(
    subject: Subject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    server = ("--yes", "--pid", subject.server.pid)
    before = subject.values(CONNECTIONS)
    result = innoscope("toggle", "set", CONNECTIONS.toggle, CONNECTIONS.value, "--way", "memory", *server)
    assert result.returncode == 0, result.stderr
    assert subject.values(CONNECTIONS) == CONNECTIONS.after
    assert innoscope("toggle", "undo").returncode == 0
    assert subject.values(CONNECTIONS) == before


@pytest.fixture
def full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A state folder on a disk without room."""
    folder = tmp_path / "full"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m,mode=700", "tmpfs", folder], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", folder], check=True)


def test_a_full_disk_refuses_before_anything_is_written(
    subject: Subject, full: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INNOSCOPE_STATE", str(full))
    before = subject.values(READ_AHEAD)
    plan = engine.plan(subject.target, "read_ahead", "off", account=ACCOUNT)

    def fill(point: str) -> None:
        if point == "checked":
            (full / "filler").write_bytes(b"\0" * _room(full))

    with pytest.raises(Refused, match="No space left") as caught:
        engine.apply(subject.target, plan, who="test", account=ACCOUNT, fault=fill)
    assert "df" in str(caught.value.remedy)
    with pytest.raises(Refused, match="left"):
        engine.apply(subject.target, plan, who="test", account=ACCOUNT)
    assert subject.values(READ_AHEAD) == before
    (full / "filler").unlink()
    assert engine.apply(subject.target, plan, who="test", account=ACCOUNT).outcome == "done"
    subject.set_back()
    assert subject.values(READ_AHEAD) == before


def test_a_full_disk_at_the_result_leaves_a_change_that_can_be_undone(
    subject: Subject, full: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Written and verified, but not told: the journal says that it was begun, and undo looks for itself."""
    monkeypatch.setenv("INNOSCOPE_STATE", str(full))
    before = subject.values(READ_AHEAD)
    plan = engine.plan(subject.target, "read_ahead", "off", account=ACCOUNT)

    def fill(point: str) -> None:
        if point == "verified":
            _fill(full, subject.journal.path)

    with pytest.raises(ChangeFailed, match="the journal cannot say so") as caught:
        engine.apply(subject.target, plan, who="test", account=ACCOUNT, fault=fill)
    entry = subject.last()
    assert entry is not None
    assert entry.outcome == "intended"
    assert f"innoscope toggle undo {entry.id}" in str(caught.value.remedy)
    assert subject.values(READ_AHEAD) == READ_AHEAD.after
    (full / "filler").unlink()
    assert subject.set_back().outcome == "undone"
    assert subject.values(READ_AHEAD) == before


def _fill(folder: Path, journal: Path) -> None:
    """Take all room there is, and that of the journal's last page too, by lines that are cut off."""
    (folder / "filler").write_bytes(b"\0" * _room(folder))
    with journal.open("ab", buffering=0) as file:
        file.write(b"?" * (-journal.stat().st_size % PAGE))


def _room(folder: Path) -> int:
    room = os.statvfs(folder)
    return room.f_bavail * room.f_frsize


def test_a_journal_that_cannot_be_read_refuses(subject: Subject) -> None:
    plan = engine.plan(subject.target, "read_ahead", "off", account=ACCOUNT)
    before = subject.values(READ_AHEAD)
    subject.journal.path.write_bytes(b"?\n?\n")
    with pytest.raises(Refused, match="line 1 is damaged"):
        engine.apply(subject.target, plan, who="test", account=ACCOUNT)

    assert subject.values(READ_AHEAD) == before


def test_an_undo_from_a_journal_that_cannot_be_read_says_where(subject: Subject) -> None:
    """The change stays; with the line mended it can be undone."""
    before = subject.values(READ_AHEAD)
    plan = engine.plan(subject.target, "read_ahead", "off", account=ACCOUNT)
    engine.apply(subject.target, plan, who="test", account=ACCOUNT)
    whole = subject.journal.path.read_bytes()
    subject.journal.path.write_bytes(b"?\n" + whole)
    with pytest.raises(BadFile, match="line 1 is damaged") as caught:
        subject.set_back()
    assert caught.value.remedy
    assert subject.values(READ_AHEAD) == READ_AHEAD.after

    subject.journal.path.write_bytes(whole)
    subject.set_back()
    assert subject.values(READ_AHEAD) == before
