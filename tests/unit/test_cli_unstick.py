"""Resuming a server sends signals only to the intended process, and is recorded in the journal."""

from __future__ import annotations

import errno
import os
import signal
import socket
import subprocess
import threading
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from innoscope.cli import toggle_text
from innoscope.common.errors import KernelUnable
from innoscope.target.discover import identify
from innoscope.target.proc import ProcFs
from innoscope.toggles import status_file, unstick
from innoscope.toggles.journal import Journal
from innoscope.toggles.model import ChangeRefused
from innoscope.toggles.paths import boot_id
from innoscope.toggles.stopped_threads import ThreadStates, Tracer

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from innoscope.target.model import Target

GREETING = b"\x4a\x00\x00\x00\x0a5.6.24\x00"
TOO_MANY = b"\x17\x00\x00\x00\xff\x10\x04Too many connections"
GDB = Tracer(12, 99, "gdb", "gdb -p 7", "root (ann)", 1000.0, stopped=False, started_server=False)
FOUND = ThreadStates(threads=125, stopped=3, traced=122, tracers=(GDB,), hidden=False)


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "600"]) as process:
        yield process
        process.kill()


@pytest.fixture
def target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Target:
    """Return a target for this process; its journal is in a temporary directory."""
    monkeypatch.setenv("INNOSCOPE_STATE", str(tmp_path / "state"))
    return identify(ProcFs(), os.getpid())


def start_time(process: subprocess.Popen[bytes]) -> int:
    return ProcFs().stat(process.pid).start_time


def test_signal_is_sent_and_the_end_is_awaited(sleeper: subprocess.Popen[bytes]) -> None:
    began = start_time(sleeper)
    assert not unstick.send(sleeper.pid, began, 0)
    assert unstick.send(sleeper.pid, began, signal.SIGTERM, 10)
    assert unstick.send(sleeper.pid, began, signal.SIGTERM), "a zombie counts as ended"
    assert sleeper.wait() == -signal.SIGTERM
    assert unstick.send(sleeper.pid, began, signal.SIGTERM), "the process is reaped"


def test_process_that_reuses_the_pid_gets_no_signal(sleeper: subprocess.Popen[bytes]) -> None:
    assert unstick.send(sleeper.pid, start_time(sleeper) + 1, signal.SIGKILL, 0.1)
    assert sleeper.poll() is None


def test_kernel_without_pidfds_is_refused_with_a_command(
    sleeper: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(_: int) -> int:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    began = start_time(sleeper)
    monkeypatch.setattr(os, "pidfd_open", missing)
    with pytest.raises(KernelUnable, match="pidfd") as refused:
        unstick.send(sleeper.pid, began, signal.SIGCONT)
    assert f"kill -CONT {sleeper.pid}" in str(refused.value.remedy)


def test_stopped_server_is_resumed(target: Target, sleeper: subprocess.Popen[bytes]) -> None:
    server = replace(target, pid=sleeper.pid, start_time=start_time(sleeper), socket=None)
    sleeper.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, sleeper.pid, os.WSTOPPED | os.WNOWAIT)
    found = next(unstick.stopped_for(server, 0.2))
    assert (found.stopped, found.traced, found.tracers) == (1, 0, ())

    done = unstick.rescue(server, found, end_tracer=False)

    assert (done.steps, done.answered, done.journal) == (("SIGCONT to the server",), None, None)
    assert not unstick.find(server).still
    assert [entry.outcome for entry in Journal().entries()] == ["done"]


def test_debugger_is_killed_only_on_request(target: Target) -> None:
    with pytest.raises(ChangeRefused, match=r"held by gdb \(pid 12\) of root \(ann\)") as refused:
        unstick.check(target, FOUND, end_tracer=False)
    assert "--end-tracer" in str(refused.value.remedy)
    unstick.check(target, FOUND, end_tracer=True)
    parent = replace(FOUND, tracers=(replace(GDB, started_server=True),))
    with pytest.raises(ChangeRefused, match="which started it"):
        unstick.check(target, parent, end_tracer=True)


def test_rescue_is_in_the_journal(target: Target) -> None:
    steps = "SIGTERM to gdb (pid 12), SIGCONT to the server: recovered after 0.06 s"
    for outcome in ("done", "failed"):
        assert unstick.journal_rescue(target, 5.0, FOUND, outcome, steps) is None

    entry, failed = Journal().entries()
    assert (entry.toggle, entry.backend, entry.outcome) == ("unstick", "signal", "done")
    assert failed.outcome == "failed"
    assert (entry.may_be_in_force, failed.may_be_in_force) == (False, False)
    assert entry.server.life == (target.pid, target.start_time, boot_id())
    row = dict(zip(toggle_text.HISTORY, toggle_text.history_row(entry), strict=True))
    assert row["CHANGE"] == str(FOUND)
    assert row["OUTCOME"] == f"done: {steps}"
    assert status_file.document([entry])["servers"] == []


def test_damaged_journal_is_not_written(target: Target) -> None:
    journal = Journal()
    journal.folder.mkdir(mode=0o700)
    journal.path.write_bytes(b"?\n?\n")
    journal.path.chmod(0o600)

    assert "line 1 is damaged" in str(unstick.journal_rescue(target, 5.0, FOUND, "done", ""))
    assert journal.path.read_bytes() == b"?\n?\n"


@pytest.mark.parametrize("name", ["folder is a file", "folder is a device"])
def test_unwritable_journal_is_reported(target: Target, tmp_path: Path, name: str) -> None:
    folder = tmp_path / "state"
    if name == "folder is a file":
        folder.write_text("")
    else:
        folder.symlink_to("/dev/full")

    assert str(folder) in str(unstick.journal_rescue(target, 5.0, FOUND, "done", ""))


def listening(path: Path) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen()
    return listener


@pytest.mark.parametrize(
    ("greeting", "expected"),
    [(GREETING, True), (TOO_MANY, True), (b"", False), (b"\x01", False), (b"HTTP/1.1 200 OK", False)],
)
def test_server_answers_if_it_sends_a_greeting(
    target: Target, tmp_path: Path, greeting: bytes, expected: bool
) -> None:
    path = tmp_path / "s.sock"
    with listening(path) as listener:

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.sendall(greeting)

        server = threading.Thread(target=serve)
        server.start()
        assert unstick.answers(replace(target, socket=str(path)), 5) is expected
        server.join()


def test_silent_server_does_not_answer(target: Target, tmp_path: Path) -> None:
    """Use a socket on which the kernel accepts the connection, but no process sends anything."""
    path = tmp_path / "s.sock"
    with listening(path):
        assert unstick.answers(replace(target, socket=str(path)), 0.05) is False


def test_server_without_a_socket_cannot_be_tested(target: Target, tmp_path: Path) -> None:
    assert unstick.answers(replace(target, socket=str(tmp_path / "none.sock")), 1) is None
    assert unstick.answers(replace(target, socket=str(tmp_path / "no folder" / "none.sock")), 1) is None
    assert unstick.answers(replace(target, socket=None), 1) is None
