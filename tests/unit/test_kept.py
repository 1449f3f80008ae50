"""The cache returns whole what was written, from files that only we can have written, or nothing.

tests/safety/test_cache_owner.py gives a file to another user, for which it needs root.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from innoscope import data, kept
from innoscope.kept import Shelf, cache_folder

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.fixture(autouse=True)
def folder(memory_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder that the cache uses for things."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(memory_folder))
    return memory_folder / "innoscope" / "things"


def test_what_was_written_comes_back(folder: Path) -> None:
    shelf = Shelf("things", 4)
    assert shelf.read("one") is None
    shelf.write("one", b"content")
    shelf.write("none", b"")

    assert (shelf.read("one"), shelf.read("none")) == (b"content", b"")
    assert ((folder / "one").stat().st_mode & 0o777, folder.stat().st_mode & 0o777) == (0o600, 0o700)
    assert sorted(file.name for file in folder.iterdir()) == ["none", "one"]


def test_it_can_be_removed() -> None:
    shelf = Shelf("things", 4)
    shelf.write("one", b"content")
    assert shelf.remove("one")
    assert not shelf.remove("one")
    assert shelf.read("one") is None


def test_damage_anywhere_shows(folder: Path) -> None:
    shelf = Shelf("things", 4)
    shelf.write("one", b"content")
    file = folder / "one"
    whole = file.read_bytes()
    for index in range(len(whole)):
        file.write_bytes(whole[:index] + bytes([whole[index] ^ 1]) + whole[index + 1 :])
        assert shelf.read("one") is None
        file.write_bytes(whole[:index])
        assert shelf.read("one") is None


def _group_may_write(file: Path) -> None:
    file.chmod(0o620)


def _folder_open_to_all(file: Path) -> None:
    file.parent.chmod(0o777)


def _a_folder(file: Path) -> None:
    file.unlink()
    file.mkdir()


@pytest.mark.parametrize("spoil", [_group_may_write, _folder_open_to_all, _a_folder])
def test_what_others_could_have_written_is_not_read(folder: Path, spoil: Callable[[Path], None]) -> None:
    shelf = Shelf("things", 4)
    shelf.write("one", b"content")
    spoil(folder / "one")
    assert shelf.read("one") is None


def test_the_oldest_make_room(folder: Path) -> None:
    shelf = Shelf("things", 2)
    for number in range(4):
        shelf.write(str(number), b"content")
        os.utime(folder / str(number), (number, number))
    assert sorted(file.name for file in folder.iterdir()) == ["2", "3"]


def test_without_a_place_nothing_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    shelf = Shelf("things", 4)
    shelf.write("one", b"content")
    assert shelf.read("one") is None
    assert not shelf.remove("one")


def test_where_the_cache_is(monkeypatch: pytest.MonkeyPatch) -> None:
    assert str(cache_folder({"XDG_CACHE_HOME": "/c"})) == "/c/innoscope"
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert str(cache_folder({})) == "/var/cache/innoscope"
    monkeypatch.setattr(os, "geteuid", lambda: 4242)
    monkeypatch.setenv("HOME", "/h")
    assert str(cache_folder({})) == "/h/.cache/innoscope"


def test_keys_differ_with_what_they_are_made_of() -> None:
    assert len({kept.key("ab", "c"), kept.key("a", "bc"), kept.key("abc"), kept.key()}) == 4


def test_another_version_keeps_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    before = kept.key("ab")
    monkeypatch.setattr(kept, "__version__", "99.0")
    assert kept.key("ab") != before


def test_a_catalog_is_parsed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "one.yaml"
    file.write_text("a: [1, 1.0, null, text]\n")
    parsed = data.read_catalog(file)
    monkeypatch.setattr(data, "_parsed", None)

    assert data.read_catalog(file) == parsed == {"a": [1, 1.0, None, "text"]}
    file.write_text("a: 2\n")
    with pytest.raises(TypeError):
        data.read_catalog(file)


def test_keys_that_are_numbers_are_kept_as_such(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "one.yaml"
    file.write_text("1: one\nfalse: two\n")
    data.read_catalog(file)
    monkeypatch.setattr(data, "_parsed", None)

    assert data.read_catalog(file) == {1: "one", False: "two"}


def test_what_cannot_be_kept_is_parsed_each_time(tmp_path: Path) -> None:
    file = tmp_path / "one.yaml"
    file.write_text("a: 2026-01-02\n")
    assert data.read_catalog(file) == data.read_catalog(file) == data.read_yaml(file)
    assert not (tmp_path / "innoscope" / "catalogs").exists()


@pytest.mark.parametrize("path", sorted(data.folder("catalog").glob("**/*.yaml")), ids=lambda path: path.stem)
def test_every_catalog_of_ours_is_kept(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parsed = data.read_catalog(path)
    monkeypatch.setattr(data, "_parsed", None)
    assert data.read_catalog(path) == parsed
