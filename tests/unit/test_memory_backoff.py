"""If a file's debug information cannot be read, reading is retried with increasing delays."""

from __future__ import annotations

import os
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from innoscope import _native
from innoscope.common.cache import Cache
from innoscope.common.errors import BadFile, NotRead
from innoscope.memory import layout
from innoscope.memory.backoff import Backoff
from innoscope.memory.layout import Debug
from unit.test_memory_layout import MEMBERS, PATHS, TARGET, Native

FILE = (1, 2, 3, 4)
NO_CACHE = Cache("layouts", 4, Path("/proc/none"))


class Clock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(layout, "_FAILED", Backoff(clock))
    return clock


def test_the_delay_doubles_up_to_an_hour_and_success_ends_it() -> None:
    clock = Clock()
    backoff = Backoff(clock)
    for delay in (60, 120, 240, 480, 960, 1920, 3600, 3600):
        backoff.check([FILE])
        error = backoff.failed([FILE], BadFile("damaged", remedy="mend it"))
        assert (error.what, error.remedy) == (f"damaged; retried after {delay} s", "mend it")
        clock.now += delay - 1
        with pytest.raises(NotRead) as caught:
            backoff.check([FILE])
        assert caught.value.what == error.what
        backoff.check([(1, 2, 3, 5)])
        clock.now += 1
    backoff.succeeded([FILE])
    assert "60 s" in backoff.failed([FILE], BadFile("damaged")).what


def test_number_of_failed_files_is_bounded() -> None:
    backoff = Backoff(Clock())
    for inode in range(2000):
        backoff.failed([(1, inode, 3, 4)], BadFile("damaged"))
    backoff.check([(1, 0, 3, 4)])
    with pytest.raises(NotRead):
        backoff.check([(1, 1999, 3, 4)])


def test_touched_file_is_still_delayed() -> None:
    backoff = Backoff(Clock())
    process = (7, 8)
    backoff.failed([FILE, process], BadFile("damaged"))
    with pytest.raises(NotRead):
        backoff.check([(1, 2, 3, 5), process])
    assert "120 s" in backoff.failed([(1, 2, 3, 5), process], BadFile("damaged")).what


def test_failed_file_is_not_read_at_each_scrape(monkeypatch: pytest.MonkeyPatch, clock: Clock) -> None:
    native = Native(monkeypatch)

    def fail(*_: object) -> object:
        native.reads += 1
        raise _native.NativeError("elf", "/mysqld: debug information: exceeds")

    monkeypatch.setattr(_native, "members_in_process", fail)
    for _ in range(3):
        with pytest.raises(NotRead, match="/mysqld: debug information: exceeds; retried after 60 s"):
            layout.learn(TARGET, ["pool"], PATHS, Debug(), NO_CACHE)
    assert native.reads == 1
    clock.now += 60
    monkeypatch.setattr(_native, "members_in_process", lambda *_: MEMBERS)
    assert layout.learn(TARGET, ["pool"], PATHS, Debug(), NO_CACHE).described


def test_child_of_another_server_blocks_only_until_its_timeout(
    monkeypatch: pytest.MonkeyPatch, clock: Clock
) -> None:
    Native(monkeypatch)
    monkeypatch.setattr(layout, "_CHILD_TIMEOUT_S", 0.05)
    reading, done = threading.Event(), threading.Event()

    def hang(pid: int, *_: object) -> object:
        if pid == os.getpid():
            return MEMBERS
        reading.set()
        done.wait(10)
        return None

    monkeypatch.setattr(_native, "members_in_process", hang)
    hostile = replace(TARGET, pid=os.getppid())
    other = threading.Thread(target=layout.learn, args=(hostile, ["pool"], PATHS, Debug(), NO_CACHE))
    other.start()
    try:
        assert reading.wait(10)
        assert layout.learn(TARGET, ["pool"], PATHS, Debug(), NO_CACHE).described
    finally:
        done.set()
        other.join()
