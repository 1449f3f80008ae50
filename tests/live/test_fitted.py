"""Test that a cached snapshot program, already relocated for this kernel, takes correct snapshots."""

from __future__ import annotations

import os
import struct
from typing import TYPE_CHECKING

import pytest

from innoscope._native import Process
from innoscope.sampling import fitted_program
from innoscope.sampling.engine import Engine
from innoscope.target.discover import find_one
from scale import long
from servers import Server
from workloads import RowLock

if TYPE_CHECKING:
    from pathlib import Path

    from innoscope.sampling.model import Snapshot


def _opened(fitted: bytes | None, *, kernel: bool = False) -> Process:
    return Process(os.getpid(), method="bpf", kernel=kernel, fitted=fitted)


def _tids(process: Process) -> set[int]:
    return {thread.tid for thread in process.take_snapshot().threads}


@pytest.mark.parametrize("kernel", [False, True])
def test_fitted_program_is_reused(kernel: bool) -> None:
    first = _opened(None, kernel=kernel)
    assert first.fitted is not None
    again = _opened(first.fitted, kernel=kernel)
    assert again.fitted is None, "nothing new to keep"
    assert _tids(again) == _tids(first)


def test_damaged_or_different_program_is_relocated_again() -> None:
    good = _opened(None).fitted
    assert good is not None
    for bad in (b"", b"junk", good[:-40], good[: len(good) // 2]):
        assert _opened(bad).fitted == good
    assert _opened(good, kernel=True).fitted not in (None, good), "made without the kernel's part"


@long("it takes eight seconds; the tests above cover the reuse of a program")
def test_next_engine_loads_the_stored_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with Server("mysql-5.6.24") as server, RowLock(server, 10):
        target = find_one(server.pid)
        first = _waiting(Engine(target, method="bpf", kernel=True).take_snapshot())
        [stored] = (tmp_path / "innoscope/fitted").iterdir()
        written = stored.stat().st_mtime_ns
        assert _waiting(Engine(target, method="bpf", kernel=True).take_snapshot()) == first
        assert len(first) >= 9
        assert stored.stat().st_mtime_ns == written


def _waiting(snapshot: Snapshot) -> dict[int, tuple[str, ...]]:
    """Return the stacks of the threads that are waiting for the row lock, by thread id."""
    return {
        thread.tid: tuple(frame.label for frame in thread.frames)
        for thread in snapshot.threads
        if thread.wait == "row_lock"
    }


def _note(name: bytes, kind: int, content: bytes) -> bytes:
    padded = [part + bytes(-len(part) % 4) for part in (name, content)]
    return struct.pack("=III", len(name), len(content), kind) + b"".join(padded)


def test_kernel_is_identified_by_its_build_id(tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    other = _note(b"Linux\0", 0, b"\1\2\3\4\5")
    for content, build in (
        (_note(b"GNU\0", 3, b"\xab\xcd") + other, "abcd"),
        (other + _note(b"GNU\0", 3, b"\x01" * 20), "01" * 20),
        (other + _note(b"GNU\0", 1, b"\x01" * 16), None),
        (other[:10], None),
        (b"", None),
    ):
        notes.write_bytes(content)
        assert fitted_program.kernel_build(notes) == build
    assert fitted_program.kernel_build(tmp_path / "none") is None
    assert fitted_program.kernel_build() is not None


def test_nothing_is_stored_without_a_build_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(fitted_program, "kernel_build", lambda: None)
    assert fitted_program.open_process(_opened, kernel=False).fitted is not None
    assert not list(tmp_path.iterdir())
