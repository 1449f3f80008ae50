"""The cache returns a file's content only if the file is undamaged and no other user can have written it.

tests/safety/test_program_cache.py changes the owner of a file, which needs root.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from innoscope.common import cache
from innoscope.common.cache import Cache, cache_folder, cache_key

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.fixture(autouse=True)
def folder(memory_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the directory of the cache named ``things``."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(memory_folder))
    return memory_folder / "innoscope" / "things"


def test_content_that_was_written_can_be_read(folder: Path) -> None:
    things = Cache("things", 4)
    assert things.read("one") is None
    things.write("one", b"content")
    things.write("none", b"")

    assert (things.read("one"), things.read("none")) == (b"content", b"")
    assert ((folder / "one").stat().st_mode & 0o777, folder.stat().st_mode & 0o777) == (0o600, 0o700)
    assert sorted(file.name for file in folder.iterdir()) == ["none", "one"]


def test_content_can_be_removed() -> None:
    things = Cache("things", 4)
    things.write("one", b"content")
    assert things.remove("one")
    assert not things.remove("one")
    assert things.read("one") is None


def test_damaged_content_is_not_returned(folder: Path) -> None:
    things = Cache("things", 4)
    things.write("one", b"content")
    file = folder / "one"
    whole = file.read_bytes()
    for index in range(len(whole)):
        file.write_bytes(whole[:index] + bytes([whole[index] ^ 1]) + whole[index + 1 :])
        assert things.read("one") is None
        file.write_bytes(whole[:index])
        assert things.read("one") is None


def _group_may_write(file: Path) -> None:
    file.chmod(0o620)


def _folder_open_to_all(file: Path) -> None:
    file.parent.chmod(0o777)


def _a_folder(file: Path) -> None:
    file.unlink()
    file.mkdir()


@pytest.mark.parametrize("spoil", [_group_may_write, _folder_open_to_all, _a_folder])
def test_files_that_others_could_have_written_are_not_read(
    folder: Path, spoil: Callable[[Path], None]
) -> None:
    things = Cache("things", 4)
    things.write("one", b"content")
    spoil(folder / "one")
    assert things.read("one") is None


def test_oldest_entries_are_removed_first(folder: Path) -> None:
    things = Cache("things", 2)
    for number in range(4):
        things.write(str(number), b"content")
        os.utime(folder / str(number), (number, number))
    assert sorted(file.name for file in folder.iterdir()) == ["2", "3"]


def test_unwritable_folder_disables_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    things = Cache("things", 4)
    things.write("one", b"content")
    assert things.read("one") is None
    assert not things.remove("one")


def test_folder_depends_on_user_and_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    assert str(cache_folder({"XDG_CACHE_HOME": "/c"})) == "/c/innoscope"
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert str(cache_folder({})) == "/var/cache/innoscope"
    monkeypatch.setattr(os, "geteuid", lambda: 4242)
    monkeypatch.setenv("HOME", "/h")
    assert str(cache_folder({})) == "/h/.cache/innoscope"


def test_keys_differ_by_their_parts_and_by_our_version(monkeypatch: pytest.MonkeyPatch) -> None:
    assert len({cache_key("ab", "c"), cache_key("a", "bc"), cache_key("abc"), cache_key()}) == 4
    before = cache_key("ab")
    monkeypatch.setattr(cache, "__version__", "99.0")
    assert cache_key("ab") != before
