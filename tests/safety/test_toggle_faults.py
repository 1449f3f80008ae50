"""Test changes to a real server under faults: killed tools, restarts, a full disk, a damaged journal."""

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
from innoscope.toggles.model import ChangeFailed, ChangeRefused
from innoscope.toggles.undo import Overtaken
from live.changing import connected
from safety.command import innoscope
from safety.recovering import DOUBLINGS, ROOMY, TIGHT, make_redo
from safety.toggle_subject import ACCOUNT, CONNECTIONS, READ_AHEAD, Subject
from scale import few, long
from servers import Server
from waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from safety.toggle_subject import Change

PATIENCE_S = 30
#: Time limit of a change in seconds. A busy host may need seconds until the test has seen the change.
LIMIT_S = 8.0
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
    """Start a server that the test may stop or fill with connections."""
    with Server("mysql-5.6.24") as server:
        yield Subject(server)


@pytest.mark.parametrize("change", [READ_AHEAD, CONNECTIONS], ids=lambda change: change.toggle)
@pytest.mark.parametrize(
    "point", few(["concluded", "written-0"], "written-0", reason="the earlier kill is in make test")
)
def test_a_time_limit_is_kept_if_the_tool_was_killed(subject: Subject, change: Change, point: str) -> None:
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


def test_a_time_limit_is_kept_if_the_server_is_stopped_then(subject: Subject) -> None:
    before = subject.values(READ_AHEAD)
    assert subject.set(READ_AHEAD, "-", LIMIT_S).wait(PATIENCE_S) == 0
    subject.server.process.send_signal(signal.SIGSTOP)
    try:
        until(lambda: (found := subject.last()) is not None and found.notes)
    finally:
        subject.server.process.send_signal(signal.SIGCONT)
    until(lambda: subject.values(READ_AHEAD) == before)


def test_a_raised_connection_limit_is_undone_while_nobody_can_log_in(lone: Subject) -> None:
    """Raise max_connections through memory, and undo it the same way while every connection is in use."""
    with ExitStack() as connections:
        first = connections.enter_context(closing(lone.server.connect()))
        first.cursor().execute(f"SET GLOBAL max_connections = {FEW}")
        until(lambda: connected(first) == 1)  # the server may still be closing earlier connections
        _take_connections(lone, connections)
        raised = replace(CONNECTIONS, value=str(FEW + 2), after=(FEW + 2,))
        assert lone.set(raised, "-", LIMIT_S).wait(PATIENCE_S) == 0
        assert _take_connections(lone, connections) == 2
        until(lambda: (found := lone.last()) is not None and found.outcome == "undone")
        with first.cursor() as cursor:
            cursor.execute("SELECT @@global.max_connections")
            assert cursor.fetchone() == (FEW,)


def _take_connections(subject: Subject, connections: ExitStack) -> int:
    """Use up the free connections, including the one reserved for root, and return how many were free."""
    for taken in range(1000):
        try:
            connections.enter_context(closing(subject.server.connect()))
        except pymysql.err.OperationalError:
            return taken
    raise AssertionError("no connection limit")


def test_a_restarted_server_is_not_changed_by_undo(lone: Subject) -> None:
    process = lone.set(READ_AHEAD, "-", 600)
    assert process.wait(PATIENCE_S) == 0
    entry = lone.last()
    assert entry is not None
    lone.server.stop()
    lone.server.start()
    before = lone.values(READ_AHEAD)
    for target in (lone.target, None):
        with pytest.raises(Overtaken, match="has exited"):
            engine.undo(target, entry.id, account=ACCOUNT, who="test")

    assert lone.values(READ_AHEAD) == before


@long("it needs a crash recovery, which takes seconds")
def test_a_server_in_crash_recovery_is_not_changed() -> None:
    with Server("mysql-5.6.24", options=ROOMY) as server:
        make_redo(server, DOUBLINGS - 2)
        _assert_not_changed_during_recovery(Subject(server))


def _assert_not_changed_during_recovery(lone: Subject) -> None:
    plan = engine.plan(lone.target, "max_connections", "2600", account=ACCOUNT, backends=["memory"])
    before = lone.values(CONNECTIONS)
    lone.server.kill()
    lone.server.options = TIGHT
    lone.server.start(wait=False)
    deadline, refusal = time.monotonic() + PATIENCE_S, ""
    while "does not listen" not in refusal:
        assert time.monotonic() < deadline, refusal
        try:
            engine.apply(lone.target, plan, who="test", account=ACCOUNT)
        except InnoscopeError as error:
            refusal, remedy = error.what, error.remedy
        else:
            raise AssertionError("the server was changed")
    lone.server.wait_ready()

    assert "ready for connections" in str(remedy)
    assert lone.values(CONNECTIONS) == before
    assert lone.last() is None


def test_a_stopped_server_is_not_changed(subject: Subject) -> None:
    plan = engine.plan(subject.target, "max_connections", "2600", account=ACCOUNT, backends=["memory"])
    subject.server.process.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, subject.server.pid, os.WSTOPPED | os.WNOWAIT)
    try:
        with pytest.raises(ChangeRefused, match="stopped") as caught:
            engine.apply(subject.target, plan, who="test", account=ACCOUNT)
    finally:
        subject.server.process.send_signal(signal.SIGCONT)

    assert "unstick" in str(caught.value.remedy)
    assert subject.last() is None


def test_memory_is_written_without_gdb(
    subject: Subject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    server = ("--yes", "--pid", subject.server.pid)
    before = subject.values(CONNECTIONS)
    result = innoscope("toggle", "set", CONNECTIONS.toggle, CONNECTIONS.value, "--backend", "memory", *server)
    assert result.returncode == 0, result.stderr
    assert subject.values(CONNECTIONS) == CONNECTIONS.after
    assert innoscope("toggle", "undo").returncode == 0
    assert subject.values(CONNECTIONS) == before


@pytest.fixture
def full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Mount a small file system for the state directory."""
    folder = tmp_path / "full"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m,mode=700", "tmpfs", folder], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", folder], check=True)


def test_a_change_is_refused_if_the_disk_is_full(
    subject: Subject, full: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INNOSCOPE_STATE", str(full))
    before = subject.values(READ_AHEAD)
    plan = engine.plan(subject.target, "read_ahead", "off", account=ACCOUNT)

    def fill(point: str) -> None:
        if point == "checked":
            (full / "filler").write_bytes(b"\0" * _room(full))

    with pytest.raises(ChangeRefused, match="No space left") as caught:
        engine.apply(subject.target, plan, who="test", account=ACCOUNT, fault=fill)
    assert "df" in str(caught.value.remedy)
    with pytest.raises(ChangeRefused, match="left"):
        engine.apply(subject.target, plan, who="test", account=ACCOUNT)
    assert subject.values(READ_AHEAD) == before
    (full / "filler").unlink()
    assert engine.apply(subject.target, plan, who="test", account=ACCOUNT).outcome == "done"
    subject.undo_here()
    assert subject.values(READ_AHEAD) == before


def test_a_change_whose_result_cannot_be_journaled_can_be_undone(
    subject: Subject, full: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Make and verify a change whose result cannot be journaled. Undo then reads the server's value."""
    monkeypatch.setenv("INNOSCOPE_STATE", str(full))
    before = subject.values(READ_AHEAD)
    plan = engine.plan(subject.target, "read_ahead", "off", account=ACCOUNT)

    def fill(point: str) -> None:
        if point == "verified":
            _fill(full, subject.journal.path)

    with pytest.raises(ChangeFailed, match="could not be recorded in the journal") as caught:
        engine.apply(subject.target, plan, who="test", account=ACCOUNT, fault=fill)
    entry = subject.last()
    assert entry is not None
    assert entry.outcome == "intended"
    assert f"innoscope toggle undo {entry.id}" in str(caught.value.remedy)
    assert subject.values(READ_AHEAD) == READ_AHEAD.after
    (full / "filler").unlink()
    assert subject.undo_here().outcome == "undone"
    assert subject.values(READ_AHEAD) == before


def _fill(folder: Path, journal: Path) -> None:
    """Fill the disk, and pad the journal's last page with an incomplete line."""
    (folder / "filler").write_bytes(b"\0" * _room(folder))
    with journal.open("ab", buffering=0) as file:
        file.write(b"?" * (-journal.stat().st_size % PAGE))


def _room(folder: Path) -> int:
    room = os.statvfs(folder)
    return room.f_bavail * room.f_frsize


def test_a_change_is_refused_if_the_journal_is_damaged(subject: Subject) -> None:
    plan = engine.plan(subject.target, "read_ahead", "off", account=ACCOUNT)
    before = subject.values(READ_AHEAD)
    subject.journal.path.write_bytes(b"?\n?\n")
    with pytest.raises(ChangeRefused, match="line 1 is damaged"):
        engine.apply(subject.target, plan, who="test", account=ACCOUNT)

    assert subject.values(READ_AHEAD) == before


def test_an_undo_with_a_damaged_journal_reports_the_line(subject: Subject) -> None:
    """Check that the change stays in force, and can be undone once the line is repaired."""
    before = subject.values(READ_AHEAD)
    plan = engine.plan(subject.target, "read_ahead", "off", account=ACCOUNT)
    engine.apply(subject.target, plan, who="test", account=ACCOUNT)
    whole = subject.journal.path.read_bytes()
    subject.journal.path.write_bytes(b"?\n" + whole)
    with pytest.raises(BadFile, match="line 1 is damaged") as caught:
        subject.undo_here()
    assert caught.value.remedy
    assert subject.values(READ_AHEAD) == READ_AHEAD.after

    subject.journal.path.write_bytes(whole)
    subject.undo_here()
    assert subject.values(READ_AHEAD) == before
