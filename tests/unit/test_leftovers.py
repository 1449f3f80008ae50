"""The list of programs that tests look for in the kernel is complete."""

from __future__ import annotations

from safety.leftovers import compiled_programs


def test_all_compiled_programs_are_found_in_the_sources() -> None:
    assert compiled_programs() == {
        "snapshot", "snapshot_nosleep",
        "on_tick", "on_switch", "on_wakeup", "on_visit", "statement_enter", "statement_leave",
        "trace_enter", "trace_leave",
    }  # fmt: skip
