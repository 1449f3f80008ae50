"""Test that SQL reports a value that was written into the server's memory."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from innoscope.target.discover import find_one
from innoscope.toggles.backends.memory import MemoryWriter
from innoscope.toggles.model import Assignment, Backend, ToggledVariable
from live.changing import shown

if TYPE_CHECKING:
    from collections.abc import Iterator

    from servers import Server

VARIABLE = "innodb_sync_spin_loops"
#: A setting that can be located even on the stripped server, which has no InnoDB symbols, because Innoscope
#: finds the server's table of system variables.
SPIN_ROUNDS = ToggledVariable("srv_n_spin_wait_rounds", "unsigned", 8, (0, 100_000), variable=VARIABLE)


@pytest.fixture
def writer(any_server: Server) -> Iterator[MemoryWriter]:
    with MemoryWriter(find_one(pid=any_server.pid)) as writer:
        yield writer


def test_written_value_is_visible_over_sql_and_can_be_restored(
    any_server: Server, writer: MemoryWriter
) -> None:
    [before] = shown(any_server, [VARIABLE])
    [step] = writer.prepare(Backend("memory", (Assignment(SPIN_ROUNDS),)), [77])
    assert step.old == before == writer.read(step)

    writer.write(step)
    assert shown(any_server, [VARIABLE]) == [77] == [writer.read(step)]

    writer.write(replace(step, old=step.new, new=step.old))
    assert shown(any_server, [VARIABLE]) == [before] == [writer.read(step)]
