"""Reading many toggles uses one writer per backend. Memory is read only for values that SQL does not show."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from innoscope.toggles import engine
from innoscope.toggles.backends.sql import NoLogin
from innoscope.toggles.model import Assignment, Backend, ChangeRefused, NotOnThisServer, ToggledVariable
from unit.toggling import ACCOUNT, DELAY, SPIN, FileWriter, made_up, toggle

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from innoscope.target.model import Target
    from innoscope.toggles.model import ChangeStep, Raw, Toggle
    from unit.toggling import World

#: A setting that can be changed only in memory, and that SQL shows under another name.
SHOWN = Backend("memory", (Assignment(replace(SPIN, variable="shown")),))
HIDDEN = Backend("memory", (Assignment(DELAY),))
ABSENT = Backend("sql", (Assignment(ToggledVariable("of_another_server")),))


class Noted(FileWriter):
    """A writer that records requests, and refuses settings that the server does not have."""

    def __init__(self, kind: str, world: World, notes: list[str]) -> None:
        super().__init__(kind, world)
        self._notes = notes
        notes.append(f"{kind} opened")

    def prepare(self, backend: Backend, new: Sequence[Raw | None]) -> tuple[ChangeStep, ...]:
        self._notes.append(" ".join((self.kind, *(one.setting.name for one in backend.assignments))))
        if backend is ABSENT:
            raise ChangeRefused("no such variable")
        return super().prepare(backend, new)

    def learn(self, backends: Sequence[Backend]) -> None:
        self._notes.append(f"{self.kind} learns {len(backends)}")

    def close(self) -> None:
        self._notes.append(f"{self.kind} closed")


@pytest.fixture
def world(memory_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    with made_up(memory_folder, monkeypatch) as world:
        world.set(shown=30)
        yield world


def values(world: World, *toggles: Toggle) -> tuple[dict[str, str], list[str]]:
    notes: list[str] = []

    def writer(kind: str, _target: Target, _account: object) -> Noted:
        return Noted(kind, world, notes)

    deps = replace(world.deps, writer=writer)
    return engine.values(world.target, toggles, ACCOUNT, deps=deps), notes


def test_sql_alone_is_used_if_it_has_all_values(world: World) -> None:
    found, notes = values(world, toggle(), toggle("shown", SHOWN))

    assert found == {"spin": "30/6", "shown": "30"}
    assert notes == ["sql opened", "sql learns 2", "sql spin delay", "sql shown", "sql closed"]


def test_memory_is_read_once_for_the_other_values(world: World) -> None:
    found, notes = values(world, toggle(), toggle("hidden", HIDDEN), toggle("other", ABSENT, HIDDEN))

    assert found == {"spin": "30/6", "hidden": "6", "other": "6"}
    assert [note for note in notes if note.endswith(("opened", "2"))] == [
        "sql opened", "sql learns 2", "memory opened", "memory learns 2",
    ]  # fmt: skip


def test_without_a_login_sql_is_tried_once(world: World) -> None:
    world.broken["sql"] = NoLogin("SQL is unavailable")
    found, notes = values(world, toggle(), toggle("shown", SHOWN))

    assert found == {"spin": "30/6", "shown": "30"}
    assert [note for note in notes if note.startswith("sql ") and "learns" not in note] == [
        "sql opened", "sql spin delay", "sql closed",
    ]  # fmt: skip


def test_toggles_without_a_value_are_left_out(world: World) -> None:
    world.broken = {"sql": NoLogin("no"), "memory": NotOnThisServer("no")}
    elsewhere = toggle("elsewhere", generations=())

    assert values(world, toggle(), elsewhere)[0] == {}
    never = replace(toggle().generations[0], backends=(HIDDEN,), never={"memory": "stale entries"})
    assert values(world, toggle("never", generations=(never,)))[0] == {}
