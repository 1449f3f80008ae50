"""Rescues in the journal: told there as far as it takes them, and never held up by it."""

from __future__ import annotations

import os
import threading
import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import pytest

from innoscope.cli import toggle_words
from innoscope.target.discover import identify
from innoscope.target.proc import ProcFs
from innoscope.toggles import status
from innoscope.toggles.journal import Journal
from innoscope.toggles.places import boot_id
from innoscope.toggles.rescuelog import RescueLog
from innoscope.toggles.standing import Standing, Tracer

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from innoscope.target.model import Target

GDB = Tracer(12, 99, "gdb", "gdb -p 7", "root (ann)", 1000.0, stopped=False, started_server=False)
STEPS = ["SIGTERM to gdb (pid 12)", "SIGCONT to the server"]
AT_ONCE_S = 0.5
PATIENCE_S = 20


class Hanging(Journal):
    """Its disk hangs until it is let go."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.disk = threading.Event()

    def intend(self, *given: Any) -> None:
        self.disk.wait()
        super().intend(*given)


@pytest.fixture
def journal(memory_folder: Path) -> Journal:
    return Journal(memory_folder / "state")


@pytest.fixture(scope="module")
def target() -> Target:
    return identify(ProcFs(), os.getpid())


def until(holds: Callable[[], object]) -> None:
    """Wait for the thread that writes: a busy host may need longer than a rescue waits for it."""
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def told(outcome: str, **more: Any) -> dict[str, Any]:
    found = Standing(threads=125, stopped=3, traced=122, tracers=(GDB,), hidden=False)
    return {"at": time.time(), "end_tracer": True, "found": asdict(found), "outcome": outcome, **more}


def done() -> dict[str, Any]:
    return told("done", steps=STEPS, seconds=0.06, answered=True)


def test_a_rescue_is_told(target: Target, journal: Journal) -> None:
    log = RescueLog(target, "root (bob)", journal)
    for record in (told("intended"), done()):
        log(record)

    (entry,) = journal.entries()
    assert log.problem is None
    assert (entry.toggle, entry.way, entry.who, entry.outcome) == ("unstick", "signal", "root (bob)", "done")
    assert entry.server.life == (target.pid, target.start_time, boot_id())
    row = dict(zip(toggle_words.HISTORY, toggle_words.history_row(entry), strict=True))
    assert row["TOGGLE"] == "unstick"
    assert row["CHANGE"] == ("of 125 threads 3 stopped by a signal, 122 held by gdb (pid 12) of root (ann)")
    assert row["OUTCOME"] == "done: SIGTERM to gdb (pid 12), SIGCONT to the server: well after 0.06 s"


def test_one_that_failed_says_why(target: Target, journal: Journal) -> None:
    log = RescueLog(target, "root", journal)
    log(told("intended"))
    log(told("failed", steps=[], error="gdb (pid 12) does not end, not even by SIGKILL"))

    (entry,) = journal.entries()
    assert (entry.outcome, entry.may_be_in_force) == ("failed", False)
    assert entry.reason == "nothing sent: gdb (pid 12) does not end, not even by SIGKILL"


def test_a_guard_tells_of_each(target: Target, journal: Journal) -> None:
    log = RescueLog(target, "root", journal)
    for record in 2 * (told("intended"), done()):
        log(record)

    assert [entry.outcome for entry in journal.entries()] == ["done", "done"]


def test_a_rescue_is_no_change_in_force(target: Target, journal: Journal) -> None:
    """Nor is one whose tool was killed: it holds up no change, and there is nothing to undo."""
    RescueLog(target, "root", journal)(told("intended"))

    until(journal.entries)
    (entry,) = journal.entries()
    assert (entry.outcome, entry.may_be_in_force, entry.action) == ("intended", False, True)
    assert status.document([entry])["servers"] == []


def test_a_damaged_journal_is_told_and_left_alone(target: Target, journal: Journal) -> None:
    journal.folder.mkdir(mode=0o700)
    journal.path.write_bytes(b"?\n?\n")
    journal.path.chmod(0o600)
    log = RescueLog(target, "root", journal)
    for record in (told("intended"), done()):
        log(record)
        until(lambda: log.problem is not None and "line 1 is damaged" in log.problem[0])

    assert journal.path.read_bytes() == b"?\n?\n"


@pytest.mark.parametrize("name", ["folder is a file", "folder is a device"])
def test_a_journal_that_cannot_be_written_is_told(target: Target, tmp_path: Path, name: str) -> None:
    folder = tmp_path / "state"
    if name == "folder is a file":
        folder.write_text("")
    else:
        folder.symlink_to("/dev/full")
    log = RescueLog(target, "root", Journal(folder))
    log(told("intended"))
    log(done())

    assert log.problem is not None
    assert str(folder) in log.problem[0]


def test_a_disk_that_hangs_holds_nothing_up(target: Target, tmp_path: Path) -> None:
    journal = Hanging(tmp_path / "state")
    log = RescueLog(target, "root", journal)
    began = time.monotonic()
    log(told("intended"))
    assert time.monotonic() - began < AT_ONCE_S
    assert log.problem is not None
    assert "takes no line" in log.problem[0]

    journal.disk.set()
    log(done())
    assert [entry.outcome for entry in journal.entries()] == ["done"]
    assert log.problem is None


def test_a_host_without_room_for_a_thread(
    target: Target, journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)
    log = RescueLog(target, "root", journal)
    log(told("intended"))

    assert log.problem is not None
    assert "can't start new thread" in log.problem[0]
