"""A supervised thread that fails is restarted; if a thread hangs, the watchdog is no longer notified."""

from __future__ import annotations

import socket
import threading
import time
from typing import TYPE_CHECKING, cast

import pytest

from innoscope.common import supervision
from innoscope.common.supervision import GaveUp, Supervisor, wait
from innoscope.probes.guard import Guard
from waiting import until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from innoscope.common.supervision import Beat
    from innoscope.probes.guard import GuardedGovernor

PATIENCE_S = 60


class Panic(BaseException):
    """A stand-in for the exception that a panic in the Rust core raises."""


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, seconds in (
        ("CHECK_S", 0.01),
        ("FIRST_PAUSE_S", 0.01),
        ("LONGEST_PAUSE_S", 0.05),
        ("BEAT_S", 0.01),
    ):
        monkeypatch.setattr(supervision, name, seconds)


@pytest.fixture
def systemd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(str(tmp_path / "notify"))
        listener.settimeout(PATIENCE_S)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        yield listener


def check_until(supervisor: Supervisor, condition: Callable[[], bool]) -> None:
    """Run the supervisor's check until the condition holds."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, "the condition was never met"
        supervisor.check()
        time.sleep(0.001)


@pytest.mark.parametrize("error", [ValueError("one"), SystemExit(1), Panic("two"), MemoryError()])
def test_a_thread_that_fails_is_restarted(error: BaseException) -> None:
    begun, ended = [], threading.Event()

    def work(_: Beat) -> None:
        begun.append(threading.get_ident())
        if len(begun) < 3:
            raise error
        ended.wait(PATIENCE_S)

    supervisor = Supervisor()
    supervisor.start("work", work, PATIENCE_S)
    check_until(supervisor, lambda: len(begun) == 3)
    ended.set()

    assert supervisor.restarts == 2


def test_a_thread_that_returns_is_not_restarted() -> None:
    begun = []
    supervisor = Supervisor()
    supervisor.start("work", lambda _: begun.append(1), PATIENCE_S)
    assert supervisor.join("work", PATIENCE_S)
    for _ in range(10):
        assert supervisor.check() == []

    assert len(begun) == 1


def test_join_waits_for_a_limited_time() -> None:
    ended = threading.Event()
    supervisor = Supervisor()

    def work(_: Beat) -> None:
        ended.wait(PATIENCE_S)

    supervisor.start("work", work, PATIENCE_S)
    assert not supervisor.join("work", 0.01)
    ended.set()
    assert supervisor.join("work", PATIENCE_S)


def test_a_thread_that_keeps_failing_ends_the_process() -> None:
    def fail(_: Beat) -> None:
        raise ValueError

    supervisor = Supervisor()
    supervisor.start("work", fail, PATIENCE_S)
    with pytest.raises(GaveUp, match="cannot keep the thread work running: it failed 7 times in a row"):
        supervisor.watch(threading.Event())

    assert supervisor.restarts == 6


def test_a_thread_that_cannot_be_started_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, ended = threading.Event(), threading.Event()

    def work(_: Beat) -> None:
        begun.set()
        ended.wait(PATIENCE_S)

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    supervisor = Supervisor()
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        supervisor.start("work", work, PATIENCE_S)
        supervisor.check()
    check_until(supervisor, begun.is_set)
    ended.set()


def test_the_watchdog_is_notified_only_while_all_threads_are_alive(systemd: socket.socket) -> None:
    stuck, free, ended = threading.Event(), threading.Event(), threading.Event()

    def good(beat: Beat) -> None:
        while not ended.wait(0.005):
            beat()

    def bad(beat: Beat) -> None:
        while not ended.wait(0.005):
            beat()
            if stuck.is_set():
                free.wait(PATIENCE_S)

    supervisor = Supervisor()
    supervisor.start("good", good, PATIENCE_S)
    supervisor.start("bad", bad, 0.3)
    watching = threading.Thread(target=supervisor.watch, args=(ended,))
    watching.start()
    supervisor.ready()
    assert systemd.recv(100) == b"READY=1"
    assert systemd.recv(100) == b"WATCHDOG=1"
    stuck.set()
    systemd.settimeout(0.5)
    until(lambda: _falls_silent(systemd) and supervisor.hung() == 1)
    free.set()
    stuck.clear()
    systemd.settimeout(PATIENCE_S)
    assert systemd.recv(100) == b"WATCHDOG=1"
    ended.set()
    while (message := systemd.recv(100)) != b"STOPPING=1":
        assert message == b"WATCHDOG=1"
    watching.join()


def _falls_silent(systemd: socket.socket) -> bool:
    """Return whether no message arrives for half a second."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        try:
            assert systemd.recv(100) == b"WATCHDOG=1"
        except TimeoutError:
            return True
    return False


def test_the_watchdog_is_not_notified_before_readiness(systemd: socket.socket) -> None:
    ended = threading.Event()
    threading.Timer(0.1, ended.set).start()
    Supervisor().watch(ended)

    assert systemd.recv(100) == b"STOPPING=1"


def test_joining_all_threads_has_one_timeout() -> None:
    supervisor, gate = Supervisor(), threading.Event()
    for name in ("one", "other"):
        supervisor.start(name, lambda _: _wait(gate), PATIENCE_S)
    began = time.monotonic()
    supervisor.join_all(0.1)
    assert 0.1 <= time.monotonic() - began < PATIENCE_S / 2
    gate.set()
    supervisor.join_all(PATIENCE_S)
    assert time.monotonic() - began < PATIENCE_S


def _wait(gate: threading.Event) -> None:
    gate.wait(PATIENCE_S)


def test_a_hung_thread_of_another_module_stops_the_watchdog() -> None:
    supervisor, silent_s = Supervisor(), 0.0
    supervisor.observe("guard", lambda: silent_s, 60.0)
    assert supervisor.check() == []
    silent_s = 61.0
    assert supervisor.check() == ["guard"]
    assert supervisor.hung() == 1
    silent_s = 0.0
    assert supervisor.check() == []
    assert supervisor.hung() == 0


def test_the_guard_is_silent_only_while_it_has_something_to_watch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Guard, "ensure_running", lambda _: None)  # a thread that never runs
    guard, governor = Guard(), cast("GuardedGovernor", object())
    guard._beat_at -= 100.0
    assert guard.silent_s() == 0.0
    guard.watch(governor)
    assert guard.silent_s() < 50.0
    guard._beat_at -= 100.0
    assert guard.silent_s() > 99.0
    guard.unwatch(governor)
    assert guard.silent_s() == 0.0


def test_long_waits_beat_until_they_end() -> None:
    ended, beats = threading.Event(), 0

    def beat() -> None:
        nonlocal beats
        beats += 1
        if beats == 3:
            ended.set()

    assert wait(ended, 600.0, beat)
    assert beats == 3
    assert not wait(threading.Event(), 0.03, beat)
    assert beats >= 4
