"""Changes are checked before they are applied, and reverted if they fail. The server is simulated."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from innoscope.common.errors import SqlFailed
from innoscope.toggles import engine, lock
from innoscope.toggles.journal_format import ServerId
from innoscope.toggles.model import ChangeFailed, ChangeRefused, ChangeStep, NotOnThisServer
from innoscope.toggles.paths import boot_id
from unit.toggling import AFTER, BEFORE, MEMORY, apply, expanded, outcomes, toggle, undo, world

if TYPE_CHECKING:
    from unit.toggling import World

__all__ = ["world"]


def test_a_plan_lists_all_writes_and_warnings(world: World) -> None:
    plan = world.plan()

    assert (plan.backend.kind, plan.steps) == ("sql", (ChangeStep("spin", 30, 7), ChangeStep("delay", 6, 7)))
    assert (plan.refusals, plan.passed) == ((), ())
    assert plan.warnings == ("CPU",)
    assert world.values == BEFORE


def test_the_next_backend_is_tried_and_the_reason_is_reported(world: World) -> None:
    world.broken["sql"] = SqlFailed("Too many connections", remedy="raise it")
    plan = world.plan()

    assert plan.backend.kind == "memory"
    assert plan.passed == (("sql", "Too many connections"),)
    assert plan.warnings == ("CPU", "both at once")


def test_effect_on_the_other_nodes_is_a_warning_in_a_cluster(world: World) -> None:
    world.toggles["spin"] = toggle(cluster="others wait")
    assert world.plan().warnings == ("CPU",)

    world.facts["cluster"] = "a node of a Galera cluster"
    assert world.plan().warnings == ("CPU", "this server is a node of a Galera cluster: others wait")


def test_only_the_requested_backends_are_tried(world: World) -> None:
    assert world.plan(backends=["memory"]).backend.kind == "memory"
    with pytest.raises(NotOnThisServer, match="gdb: the catalog has no such backend"):
        world.plan(backends=["gdb"])
    world.broken["sql"] = SqlFailed("Too many connections", remedy="raise it")
    with pytest.raises(SqlFailed, match="Too many connections"):
        world.plan(backends=["sql"])
    with pytest.raises(ChangeRefused, match="sql: Too many connections; gdb: the catalog"):
        world.plan(backends=["sql", "gdb"])


def test_a_forbidden_backend_is_refused(world: World) -> None:
    harmful = toggle().generations[0]
    harmful = replace(harmful, backends=(MEMORY,), never={"memory": "it stops checkpoints"})
    world.toggles["spin"] = toggle(generations=(harmful,))

    for backends in (None, ["memory"]):
        with pytest.raises(NotOnThisServer, match="it stops checkpoints") as caught:
            world.plan(backends=backends)
        assert caught.value.remedy


def test_an_unknown_toggle_is_refused_with_similar_names(world: World) -> None:
    with pytest.raises(ChangeRefused) as caught:
        world.plan(name="spim")
    assert "spin" in str(caught.value.remedy)


def test_sql_is_not_tried_on_a_stopped_server(world: World) -> None:
    world.facts = {"stopped": 3}
    plan = world.plan()

    assert plan.backend.kind == "memory"
    assert "stopped" in plan.passed[0][1]
    assert [verdict.check for verdict in plan.refusals] == ["not_stopped"]
    with pytest.raises(ChangeRefused, match="stopped") as caught:
        world.plan(backends=["sql"])
    assert "unstick" in str(caught.value.remedy)


def test_a_change_is_applied_journaled_and_published(world: World) -> None:
    points: list[str] = []
    entry = apply(world, why="too slow", fault=points.append)

    assert world.values == AFTER
    assert (entry.outcome, entry.who, entry.why, entry.backend) == ("done", "ann", "too slow", "sql")
    assert entry.server == ServerId.of(world.target, boot_id())
    assert points == expanded(engine.FAULTS)
    (server,) = json.loads((world.folder / "toggles.json").read_text())["servers"]
    assert (server["pid"], server["changes"]["done"]) == (world.process.pid, 1)
    assert [(one["toggle"], one["who"], one["unfinished"]) for one in server["toggles"]] == [
        ("spin", "ann", False)
    ]


def test_the_history_lists_all_changes_or_those_of_a_server(world: World) -> None:
    apply(world)

    assert [entry.toggle for entry in engine.history(deps=world.deps)] == ["spin"]
    assert len(engine.history(world.target, deps=world.deps)) == 1


@pytest.mark.parametrize("changed", [{"tracer": 1}, {"listens": False}, {"start_time": None}])
def test_checks_are_repeated_before_applying(world: World, changed: dict[str, Any]) -> None:
    plan = world.plan()
    world.facts = changed
    with pytest.raises(ChangeRefused):
        engine.apply(world.target, plan, who="ann", deps=world.deps)

    assert (world.values, outcomes(world)) == (BEFORE, [])


def test_a_value_that_changed_after_the_plan_is_not_overwritten(world: World) -> None:
    plan = world.plan()
    world.set(delay=5)
    with pytest.raises(ChangeRefused, match=r"delay: it is 5 now, not 6"):
        engine.apply(world.target, plan, who="ann", deps=world.deps)

    assert world.values == BEFORE | {"delay": 5}
    assert outcomes(world) == ["not written"]


def test_a_locked_server_is_not_changed(world: World) -> None:
    plan = world.plan()
    server = ServerId.of(world.target, boot_id())
    with (
        lock.held(world.journal.folder, server),
        pytest.raises(ChangeRefused, match=f"process {os.getpid()}"),
    ):
        engine.apply(world.target, plan, who="ann", deps=world.deps)

    assert (world.values, outcomes(world)) == (BEFORE, [])


@pytest.mark.parametrize("error", [ChangeFailed("denied"), OSError(5, "I/O error"), KeyboardInterrupt()])
def test_a_failed_step_restores_the_earlier_ones(world: World, error: BaseException) -> None:
    def failing(step: ChangeStep) -> None:
        if (step.setting, step.new) == ("delay", 7):
            raise error

    world.on_write = failing
    expected = KeyboardInterrupt if isinstance(error, KeyboardInterrupt) else ChangeFailed
    with pytest.raises(expected):
        apply(world)

    assert world.values == BEFORE
    (entry,) = world.journal.entries()
    assert (entry.outcome, entry.put_back, entry.may_be_in_force) == ("failed", True, False)


def test_a_value_that_reads_back_differently_is_restored(world: World) -> None:
    world.after_write = lambda step: world.set(delay=100) if step.new == 7 else None
    with pytest.raises(ChangeFailed, match="reads back as 100"):
        apply(world)

    assert world.values == BEFORE
    assert world.journal.entries()[0].put_back


def test_a_failed_restore_is_reported_and_can_be_undone_later(world: World) -> None:
    def failing(step: ChangeStep) -> None:
        if step.setting == "delay" or step.new == 30:
            raise ChangeFailed("denied")

    world.on_write = failing
    with pytest.raises(
        ChangeFailed, match="not everything was restored: spin may be 7, but was 30"
    ) as caught:
        apply(world)
    (entry,) = world.journal.entries()
    assert (entry.outcome, entry.put_back) == ("failed", False)
    assert entry.id in str(caught.value.remedy)

    world.on_write = lambda _: None
    assert undo(world).outcome == "undone"
    assert world.values == BEFORE


def test_a_refusal_while_writing_changes_nothing(world: World) -> None:
    def refusing(_: ChangeStep) -> None:
        raise ChangeRefused("a thread is inside malloc", remedy="again")

    world.on_write = refusing
    with pytest.raises(ChangeRefused, match="malloc"):
        apply(world)

    assert outcomes(world) == ["not written"]


@pytest.mark.parametrize("broken", ["unwritable", "unreadable"])
def test_without_a_journal_nothing_is_changed(world: World, broken: str) -> None:
    plan = world.plan()
    world.journal.folder.mkdir(mode=0o700, exist_ok=True)
    if broken == "unwritable":
        world.journal.path.unlink()
        world.journal.path.mkdir()
    else:
        world.journal.path.write_bytes(b"?\n?\n")
    with pytest.raises(ChangeRefused, match="journal") as caught:
        engine.apply(world.target, plan, who="ann", deps=world.deps)

    assert caught.value.remedy
    assert [verdict.check for verdict in world.plan().refusals] == ["journal"]
    assert world.values == BEFORE


def test_a_time_limit_is_armed_before_the_first_write(world: World) -> None:
    entry = apply(world, seconds=60)

    assert world.armed == [entry.id]
    assert entry.until is not None
    assert entry.until - entry.at == 60
    with pytest.raises(ChangeRefused, match="undone automatically"):
        apply(world, "9")


def test_a_failed_change_disarms_its_time_limit(world: World) -> None:
    def failing(_: ChangeStep) -> None:
        raise ChangeFailed("denied")

    world.on_write = failing
    with pytest.raises(ChangeFailed):
        apply(world, seconds=60)

    assert world.disarmed == world.armed != []


def test_if_the_time_limit_cannot_be_armed_nothing_is_written(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*_: object) -> None:
        raise ChangeRefused("no helper", remedy="without --for")

    monkeypatch.setattr(world, "arm", failing, raising=False)
    with pytest.raises(ChangeRefused, match="no helper"):
        apply(world, seconds=60)

    assert (world.values, outcomes(world)) == (BEFORE, [])
