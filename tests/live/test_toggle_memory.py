"""A value written into a server's memory is the one that SQL reports."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from innoscope.target.discover import find_one
from innoscope.toggles.backends.memory import MemoryWriter
from innoscope.toggles.model import Assignment, Setting, Step, Way
from live.changing import shown

if TYPE_CHECKING:
    from collections.abc import Iterator

    from servers import Server

MAX_CONNECTIONS = Setting("max_connections", "unsigned", 8, (1, 100_000))
#: The stripped server has no InnoDB symbols, but a table of its variables.
SPIN_ROUNDS = Setting(
    "srv_n_spin_wait_rounds", "unsigned", 8, (0, 100_000), variable="innodb_sync_spin_loops"
)


@pytest.fixture
def writer(any_server: Server) -> Iterator[MemoryWriter]:
    with MemoryWriter(find_one(pid=any_server.pid)) as writer:
        yield writer


def prepare(writer: MemoryWriter, setting: Setting, value: int) -> Step:
    [step] = writer.prepare(Way("memory", (Assignment(setting),)), [value])
    return step


def back(step: Step) -> Step:
    return Step(step.setting, step.new, step.old, step.address, step.size, step.type, step.origin)


@pytest.mark.parametrize(
    ("setting", "variable"),
    [(MAX_CONNECTIONS, "max_connections"), (SPIN_ROUNDS, "innodb_sync_spin_loops")],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_written_value_is_visible_over_sql_and_can_be_restored(
    any_server: Server, writer: MemoryWriter, setting: Setting, variable: str
) -> None:
    [before] = shown(any_server, [variable])

    step = prepare(writer, setting, 77)
    assert step.old == before == writer.read(step)
    writer.write(step)

    assert shown(any_server, [variable]) == [77] == [writer.read(step)]
    writer.write(back(step))
    assert shown(any_server, [variable]) == [before] == [writer.read(step)]
