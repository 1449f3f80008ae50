"""The tool killed at every boundary of a change and of an undo, on a made-up server."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from innoscope.toggles import engine
from innoscope.toggles.model import Refused
from innoscope.toggles.undo import UNDO_FAULTS
from unit.toggling import ACCOUNT, expanded, killed_at, made_up

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from innoscope.toggles.journal_format import Entry
    from unit.toggling import World

BEFORE = {"spin": 30, "delay": 6}


@pytest.fixture
def world(memory_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    with made_up(memory_folder, monkeypatch) as world:
        yield world


def apply(world: World, value: str = "7", name: str = "spin", **more: Any) -> Entry:
    plan = world.plan(value, name=name)
    return engine.apply(world.target, plan, who="ann", deps=world.deps, account=ACCOUNT, **more)


def undo(world: World, which: str | None = None, **more: Any) -> Entry:
    return engine.undo(world.target, which, account=ACCOUNT, who="bob", deps=world.deps, **more)


def outcomes(world: World) -> list[str]:
    return [entry.outcome for entry in world.journal.entries()]


@pytest.mark.parametrize("point", expanded(engine.FAULTS))
def test_killed_while_changing(world: World, point: str) -> None:
    """The journal says what may be, undo looks at what is, and afterwards all is as it was before."""
    assert killed_at(point, lambda fault: apply(world, fault=fault))
    before = ("begun", "locked", "checked", "armed")
    if point in before:
        assert (world.values, outcomes(world)) == (BEFORE, [])
        assert apply(world).outcome == "done"
        return
    finished = point in ("concluded", "published")
    assert outcomes(world) == ["done" if finished else "intended"]
    if not finished:
        with pytest.raises(Refused, match="never ended"):
            apply(world)

    written = world.values != BEFORE
    assert undo(world).outcome == ("undone" if written else "not written")
    assert world.values == BEFORE
    assert apply(world).outcome == "done"


@pytest.mark.parametrize("point", expanded(UNDO_FAULTS))
@pytest.mark.parametrize("first", [None, "verified", "written-0"])
def test_killed_while_undoing(world: World, point: str, first: str | None) -> None:
    """Also the undo of a change that was itself killed: another undo ends it."""
    if first is None:
        apply(world)
    else:
        assert killed_at(first, lambda fault: apply(world, fault=fault))
    ident = world.journal.entries()[0].id
    died = killed_at(point, lambda fault: undo(world, fault=fault))
    assert died or first == "written-0", "half a change has half as many steps"

    _finish(world, ident)
    assert world.values == BEFORE
    change, *undos = world.journal.entries()
    assert change.outcome == "undone"
    assert [one.outcome for one in undos] == ["done"]


def _finish(world: World, ident: str) -> None:
    if world.journal.entries()[0].outcome != "undone":
        undo(world, ident)


def test_the_tool_may_be_killed_again_and_again(world: World) -> None:
    points: list[Callable[[World], bool]] = [
        lambda world: killed_at("written-0", lambda fault: apply(world, fault=fault)),
        lambda world: killed_at("undo-writing-0", lambda fault: undo(world, fault=fault)),
        lambda world: killed_at("undo-intended", lambda fault: undo(world, fault=fault)),
        lambda world: killed_at("undo-verified", lambda fault: undo(world, fault=fault)),
    ]
    assert all(point(world) for point in points)

    assert undo(world).outcome == "undone"
    assert world.values == BEFORE
