"""An undo never overwrites later changes, and can be repeated after a kill. The server is simulated."""

from __future__ import annotations

import json
import subprocess
from typing import TYPE_CHECKING

import pytest

from innoscope.cli.toggle_text import history_row
from innoscope.common.errors import SqlFailed
from innoscope.toggles import engine
from innoscope.toggles.model import ChangeRefused
from innoscope.toggles.paths import boot_id
from innoscope.toggles.undo import UNDO_FAULTS, Overtaken
from unit.toggling import ACCOUNT, AFTER, BEFORE, apply, expanded, killed_at, outcomes, undo, world

if TYPE_CHECKING:
    from unit.toggling import World

__all__ = ["world"]


def test_an_undo_restores_the_values_and_is_journaled(world: World) -> None:
    apply(world)
    points: list[str] = []
    entry = undo(world, fault=points.append)

    assert world.values == BEFORE
    assert points == expanded(UNDO_FAULTS, (0, 1))
    change, undoing = world.journal.entries()
    assert entry == change
    assert (change.outcome, change.undone_by, undoing.undoes) == ("undone", undoing.id, change.id)
    assert world.disarmed == [change.id]
    (server,) = json.loads((world.folder / "toggles.json").read_text())["servers"]
    assert server["toggles"] == []
    assert server["changes"] == {"done": 1, "undone": 1, "failed": 0}


def test_an_action_of_an_earlier_version_is_shown_and_cannot_be_undone(world: World) -> None:
    server = {
        "pid": world.target.pid, "start_time": world.target.start_time, "boot_id": boot_id(),
        "build_id": world.target.build_id, "flavour": "mysql", "version": [5, 6, 24], "socket": None,
    }  # fmt: skip
    step = {
        "setting": "malloc_trim(0)", "old": None, "new": None, "address": 94, "size": None, "type": None,
        "origin": "glibc: malloc_trim",
    }  # fmt: skip
    intent = {
        "v": 1, "event": "intent", "at": 5, "who": "ann", "why": None, "toggle": "release_memory",
        "value": "", "way": "gdb", "server": server, "steps": [step], "until": None, "undoes": None,
    }  # fmt: skip
    result = {
        "v": 1, "event": "result", "id": "a", "at": 6, "outcome": "done", "reason": None, "put_back": False,
    }  # fmt: skip
    world.journal.folder.mkdir(mode=0o700)
    world.journal.path.write_text(
        "".join(json.dumps(line) + "\n" for line in (intent | {"id": "a"}, result, intent | {"id": "b"}))
    )
    apply(world)

    done, begun, _ = engine.history(world.target, deps=world.deps)
    assert history_row(done)[4:8] == ("release_memory", "malloc_trim(0)", "gdb", "done")
    assert (begun.outcome, begun.may_be_in_force) == ("intended", False)
    for which in ("a", "b"):
        with pytest.raises(ChangeRefused, match="was an action"):
            undo(world, which)
    [server_status] = json.loads((world.folder / "toggles.json").read_text())["servers"]
    assert [one["toggle"] for one in server_status["toggles"]] == ["spin"]


def test_undo_does_not_overwrite_a_later_value(world: World) -> None:
    entry = apply(world)
    world.set(spin=8)
    with pytest.raises(Overtaken, match="since changed from 7 to 8") as caught:
        undo(world)

    assert "SET GLOBAL" in str(caught.value.remedy)
    assert (world.values["spin"], outcomes(world)) == (8, ["done"])
    assert entry.may_be_in_force


def test_changes_are_undone_from_the_last_one(world: World) -> None:
    first, second = apply(world, "7"), apply(world, "9")
    with pytest.raises(Overtaken) as caught:
        undo(world, first.id)
    assert second.id in str(caught.value.remedy)

    assert undo(world).id == second.id
    assert undo(world, "spin").id == first.id
    assert world.values == BEFORE
    with pytest.raises(ChangeRefused, match="undone by"):
        undo(world, first.id)
    with pytest.raises(ChangeRefused, match="none is in force"):
        undo(world)


def test_undo_of_a_value_restored_by_hand_succeeds(world: World) -> None:
    apply(world)
    world.set(**BEFORE)

    assert undo(world).outcome == "undone"
    assert "already" in str(world.journal.entries()[1].reason)


def test_undo_uses_the_backend_of_the_change(world: World) -> None:
    world.broken["sql"] = SqlFailed("Too many connections")
    entry = apply(world)
    used: list[str] = []
    world.on_write = lambda _: used.append(world.journal.entries()[-1].backend)

    assert entry.backend == "memory"
    assert undo(world).outcome == "undone"
    assert used == ["memory", "memory"]


def test_undo_never_touches_another_process(world: World) -> None:
    entry = apply(world)
    with subprocess.Popen(["sleep", "600"]) as successor:
        other = type(world)(world.folder, successor)
        with pytest.raises(ChangeRefused, match=f"made in server {world.process.pid}") as caught:
            engine.undo(other.target, entry.id, account=ACCOUNT, who="bob", deps=world.deps)
        assert entry.id in str(caught.value.remedy)
        world.process.kill()
        world.process.wait()
        for target in (other.target, None):
            with pytest.raises(Overtaken, match="has exited"):
                engine.undo(target, entry.id, account=ACCOUNT, who="bob", deps=world.deps)
            with pytest.raises(ChangeRefused, match="none is in force"):
                engine.undo(target, None, account=ACCOUNT, who="bob", deps=world.deps)
        successor.kill()
    assert world.values == AFTER


def test_another_build_under_the_same_pid_is_refused(world: World) -> None:
    apply(world)
    world.facts = {"build_id": "cd"}
    with pytest.raises(ChangeRefused, match="build-id"):
        undo(world)

    assert world.values == AFTER


@pytest.mark.parametrize("point", expanded(engine.FAULTS))
def test_a_change_killed_at_any_point_can_be_undone(world: World, point: str) -> None:
    """Check that undo restores the server's values, even if the journal contains only part of the change."""
    assert killed_at(point, lambda fault: apply(world, fault=fault))
    before = ("begun", "locked", "checked", "armed")
    if point in before:
        assert (world.values, outcomes(world)) == (BEFORE, [])
        assert apply(world).outcome == "done"
        return
    finished = point in ("concluded", "published")
    assert outcomes(world) == ["done" if finished else "intended"]
    if not finished:
        with pytest.raises(ChangeRefused, match="never completed"):
            apply(world)

    written = world.values != BEFORE
    assert undo(world).outcome == ("undone" if written else "not written")
    assert world.values == BEFORE
    assert apply(world).outcome == "done"


@pytest.mark.parametrize("point", expanded(UNDO_FAULTS))
@pytest.mark.parametrize("first", [None, "verified", "written-0"])
def test_an_undo_killed_at_any_point_can_be_repeated(world: World, point: str, first: str | None) -> None:
    """Check that a second undo completes the first one, even if the change itself was killed."""
    if first is None:
        apply(world)
    else:
        assert killed_at(first, lambda fault: apply(world, fault=fault))
    ident = world.journal.entries()[0].id
    died = killed_at(point, lambda fault: undo(world, fault=fault))
    assert died or first == "written-0", "half a change has fewer steps to undo"

    if world.journal.entries()[0].outcome != "undone":
        undo(world, ident)
    assert world.values == BEFORE
    change, *undos = world.journal.entries()
    assert change.outcome == "undone"
    assert [one.outcome for one in undos] == ["done"]
