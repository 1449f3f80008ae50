"""Damaged and hostile files of the history are reported, and not followed."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from innoscope import _native
from innoscope.sampling.sessions import files
from innoscope.sampling.sessions.store import Bounds, HistoryStore
from unit.session_samples import START, Clock, batch

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def store(folder: Path, clock: Clock) -> HistoryStore:
    made = HistoryStore(folder, Bounds(), clock, clock)
    made.prepare()
    return made


@pytest.mark.parametrize(
    "corrupt",
    [
        lambda raw: b"",
        lambda raw: raw[:7],
        lambda raw: b"PAR1" + b"\xff" * 8 + b"PAR1",
        lambda raw: raw[:-8] + (2**31 - 1).to_bytes(4, "little") + b"PAR1",
        lambda raw: raw[:-100] + bytes(92) + raw[-8:],
        lambda raw: raw[:4] + bytes(len(raw) // 2) + raw[4 + len(raw) // 2 :],
    ],
)
def test_hostile_file_is_reported(tmp_path: Path, corrupt: Callable[[bytes], bytes]) -> None:
    one = store(tmp_path, Clock())
    for second in range(200):
        one.add("orders", batch(START + second))
    one.close()
    (part,) = files.live_parts(tmp_path)
    path = part.file("samples")
    path.write_bytes(corrupt(path.read_bytes()))
    _, _, _, failed = _native.history_group(
        "samples", [path], span=(0, 1 << 62), by=["wait", "digest", "tid"], filters=[], most_groups=10
    )
    assert [name for name, _ in failed] == [path]


def test_file_of_another_table_is_refused(tmp_path: Path) -> None:
    one = store(tmp_path, Clock())
    one.add("orders", batch(START))
    one.close()
    (part,) = files.live_parts(tmp_path)
    with pytest.raises(_native.NativeError, match="other columns"):
        _native.history_check("samples", part.file("stacks"))


def test_links_and_pipes_are_not_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises((OSError, _native.NativeError)):
        _native.history_check("samples", tmp_path / "pipe")
    (tmp_path / "link").symlink_to("/etc/passwd")
    with pytest.raises(OSError, match="symbolic links"):
        _native.history_check("samples", tmp_path / "link")


@pytest.mark.parametrize("content", ["", "[]", '{"orders": "1"}', '{"orders": true}', "\xff", "[" * 100_000])
def test_damaged_cursor_is_ignored(tmp_path: Path, content: str) -> None:
    one = store(tmp_path, Clock())
    one.cursor = {"orders": 1}
    one.add("orders", batch(START))
    one.close()
    (part,) = files.live_parts(tmp_path)
    (part.path / "cursor.json").write_text(content)
    (tmp_path / ".lock").unlink()
    assert store(tmp_path, Clock()).cursor == {}
