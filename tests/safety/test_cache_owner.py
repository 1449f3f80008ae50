"""The cache does not read a file that belongs to another user."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from innoscope.common.cache import Cache

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_a_file_of_another_user_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    things = Cache("things", 4)
    things.write("one", b"content")
    os.chown(tmp_path / "innoscope" / "things" / "one", 65534, 65534)
    assert things.read("one") is None
