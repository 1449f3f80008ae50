"""A thread stands still when it has not left the CPU in between, whatever its state says at two moments."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from innoscope.target.proc import ProcFs
from innoscope.toggles.standing import Thread, standing_still, threads

if TYPE_CHECKING:
    from pathlib import Path


def _thread(state: str, switches: int, tracer: int = 0) -> dict[int, Thread]:
    return {7: Thread(7, state, tracer, switches)}


@pytest.mark.parametrize(
    ("before", "now", "still"),
    [
        (_thread("T", 5), _thread("T", 5), True),
        (_thread("t", 5, 99), _thread("t", 5, 99), True),
        (_thread("t", 5, 99), _thread("t", 6, 99), False),  # strace held it twice
        (_thread("S", 5), _thread("T", 5), False),
        (_thread("T", 5), _thread("S", 5), False),
        ({}, _thread("T", 5), False),
    ],
)
def test_still(before: dict[int, Thread], now: dict[int, Thread], still: bool) -> None:
    assert bool(standing_still(before, now)) is still


def test_from_proc(tmp_path: Path) -> None:
    for tid, state, tracer in ((41, "S (sleeping)", 0), (42, "t (tracing stop)", 9), (43, "Z (zombie)", 0)):
        task = tmp_path / "41" / "task" / str(tid)
        task.mkdir(parents=True)
        (task / "status").write_text(
            f"Name:\tx\nState:\t{state}\nTracerPid:\t{tracer}\n"
            "voluntary_ctxt_switches:\t3\nnonvoluntary_ctxt_switches:\t4\n"
        )

    found = threads(ProcFs(tmp_path), 41)

    assert found == {41: Thread(41, "S", 0, 7), 42: Thread(42, "t", 9, 7)}
    assert found[42].still
    with pytest.raises(ProcessLookupError):
        threads(ProcFs(tmp_path), 40)
