"""Offsets are cached and numbers are read correctly, with this process and its executable as the server."""

from __future__ import annotations

import ctypes
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from innoscope._native import Member, Members, Symbol
from innoscope.common.cache import Cache
from innoscope.common.errors import NoSuchProcess
from innoscope.memory import layout, numbers
from innoscope.memory.layout import Debug
from innoscope.memory.plan import Term
from unit.snapshots import target

if TYPE_CHECKING:
    from pathlib import Path

    from innoscope.target.model import Target

PATHS = ["pool.count", "pool.gone"]
FOUND = {"pool.count": Member((8,), 4, "unsigned")}
MISSING = {"pool.gone": "this build has no member gone"}
MEMBERS = Members(FOUND, MISSING)
TARGET = target(pid=os.getpid(), executable="/mysqld")


@dataclass
class FakeGlobals:
    """Imitates ``_native.Globals``."""

    symbols: dict[str, Symbol]
    source: str


GLOBALS = FakeGlobals({"pool": Symbol(4096, 16)}, "symtab")


class Native:
    """A fake core that counts how often it reads debug information."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, answer: Members | None = MEMBERS) -> None:
        from innoscope import _native

        self.reads = 0
        self.answer = answer
        monkeypatch.setattr(_native, "globals_in_process", lambda *_: GLOBALS)
        monkeypatch.setattr(_native, "members_in_process", self._members)

    def _members(self, *_: object) -> Any:
        self.reads += 1
        return self.answer


def _learn(folder: Path, paths: list[str] = PATHS, server: Target = TARGET) -> layout.Layout:
    return layout.learn(server, ["pool"], paths, Debug(), Cache("layouts", 4, folder))


def test_debug_information_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    native = Native(monkeypatch)

    first, second = _learn(tmp_path / "new" / "folder"), _learn(tmp_path / "new" / "folder")

    assert native.reads == 1
    assert (first.cached, second.cached) == (False, True)
    assert first == replace(second, cached=False)
    assert second.members == {"pool.count": Member((8,), 4, "unsigned")}
    assert second.missing == MISSING


def test_other_members_or_another_build_are_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    native = Native(monkeypatch)
    _learn(tmp_path)

    _learn(tmp_path, [*PATHS, "pool.more"])
    _learn(tmp_path, server=replace(TARGET, build_id="cd34"))
    _learn(tmp_path, server=replace(TARGET, build_id=None))  # identified by its executable instead

    assert native.reads == 4


def test_missing_debug_information_is_not_cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that later attempts search again, because the debug package may be installed in the meantime."""
    native = Native(monkeypatch, None)
    assert not _learn(tmp_path).described
    native.answer = MEMBERS
    assert _learn(tmp_path).described


def test_members_of_missing_symbols_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    native = Native(monkeypatch)

    _learn(tmp_path)
    assert _learn(tmp_path, [*PATHS, "no_such_pool.count"]).cached

    assert native.reads == 1


class _Pool(ctypes.Structure):
    _fields_ = (("count", ctypes.c_uint32), ("pct", ctypes.c_double), ("left", ctypes.c_int64))


def test_numbers_are_read_through_pointers_and_summed() -> None:
    pools = (_Pool * 3)(_Pool(1, 0.5, -1), _Pool(2, 0.25, -2), _Pool(4, 0.125, -4))
    first, count = ctypes.c_void_p(ctypes.addressof(pools)), ctypes.c_uint64(3)
    null = ctypes.c_void_p(None)
    at, length = ctypes.addressof(first), Term(ctypes.addressof(count), Member((0,), 8, "unsigned"))
    terms = {
        "one": Term(ctypes.addressof(pools), Member((0,), 4, "unsigned")),
        "through": Term(at, Member((0, 16), 8, "signed")),
        "all": Term(at, Member((0, 0), 4, "unsigned", 24, 0), length),
        "halves": Term(at, Member((0, 8), 8, "float", 24, 3)),
        "null": Term(ctypes.addressof(null), Member((0, 8), 8, "unsigned")),
        "nowhere": Term(16, Member((0,), 8, "unsigned")),
        "beyond": Term(
            at,
            Member((0, 0), 4, "unsigned", 24, 0),
            Term(ctypes.addressof(null), Member((0,), 8, "unsigned")),
        ),
    }

    found = numbers.read(os.getpid(), terms.values())

    assert {name: found[term] for name, term in terms.items()} == {
        "one": 1, "through": -1, "all": 7, "halves": 0.875, "null": None, "nowhere": None, "beyond": None,
    }  # fmt: skip


def test_implausible_number_of_elements_is_refused() -> None:
    pools, count = (_Pool * 2)(), ctypes.c_uint64(1 << 40)
    length = Term(ctypes.addressof(count), Member((0,), 8, "unsigned"))
    term = Term(ctypes.addressof(pools), Member((0,), 4, "unsigned", 24, 0), length)

    assert numbers.read(os.getpid(), [term]) == {term: None}


def test_ended_process_is_an_error() -> None:
    with pytest.raises(NoSuchProcess):
        numbers.read((1 << 22) - 1, [Term(4096, Member((0,), 8, "unsigned"))])
