"""Probe addresses are cached until the file changes, and the cost of a hit until the next day or reboot."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest

from innoscope.probes import calibration, symbol_resolution
from innoscope.probes.calibration import HitCost, known_cost

COST = HitCost(entry_ns=500.0, stepped_ns=4000.5, return_ns=300.0)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the cache directory."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "innoscope"


class File:
    """The attributes of a CodeFile that a search reads."""

    def __init__(self, path: Path, symbols_from: str = "symtab", build_id: str | None = None) -> None:
        self.path, self.symbols_from, self.build_id = str(path), symbols_from, build_id
        self.searched = 0

    def search(self, names: list[str]) -> Any:
        kind = list[tuple[str, int, bool]]
        return symbol_resolution._cached(self, names, kind, lambda: self._search(names))  # type: ignore[arg-type]

    def _search(self, names: list[str]) -> list[tuple[str, int, bool]]:
        self.searched += 1
        return [(name, len(name), True) for name in names]


@pytest.fixture
def file(tmp_path: Path) -> File:
    path = tmp_path / "mysqld"
    path.write_bytes(b"code")
    return File(path)


def test_a_search_is_cached_by_file_and_names(file: File) -> None:
    first, second = file.search(["log_write"]), file.search(["log_write"])
    assert file.searched == 1
    assert first == second == [("log_write", 9, True)]
    file.search(["log_write", "fil_flush"])
    assert file.searched == 2


def test_a_changed_file_is_searched_again(file: File, tmp_path: Path) -> None:
    file.search(["log_write"])
    os.utime(file.path, ns=(1, 1))
    file.search(["log_write"])
    assert file.searched == 2
    Path(file.path).write_bytes(b"other")
    file.search(["log_write"])
    assert file.searched == 3


@pytest.mark.parametrize("change", [{"symbols_from": "debug-file"}, {"build_id": "00ff"}])
def test_another_symbol_source_or_build_is_searched_again(file: File, change: dict[str, str]) -> None:
    file.search(["log_write"])
    other = File(Path(file.path), **change)
    other.search(["log_write"])
    assert other.searched == 1


@pytest.mark.parametrize(("name", "symbols_from"), [(".", "symbol-pack"), ("missing", "symtab")])
def test_symbol_packs_and_missing_files_are_not_cached(tmp_path: Path, name: str, symbols_from: str) -> None:
    file = File(tmp_path / name, symbols_from)
    file.search(["log_write"])
    file.search(["log_write"])
    assert file.searched == 2


def test_the_cost_of_a_hit_is_measured_once_per_day(monkeypatch: pytest.MonkeyPatch) -> None:
    measured = []

    def measure(programs: Any) -> HitCost:
        measured.append(programs)
        return COST

    monkeypatch.setattr(calibration, "calibrate", measure)
    programs: Any = object()
    assert known_cost(programs) == known_cost(programs) == COST
    assert measured == [programs]

    monkeypatch.setattr(time, "time", lambda: 4e9)
    known_cost(programs)
    assert len(measured) == 2
