"""A thread is stopped if two samples show it as stopped, without a context switch between them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from innoscope.target.proc import ProcFs
from innoscope.toggles import stopped_threads
from innoscope.toggles.stopped_threads import ThreadStates, Tracer

if TYPE_CHECKING:
    from pathlib import Path


def _thread(state: str, switches: int, tracer: int = 0) -> dict[int, dict[str, str]]:
    counts = {"voluntary_ctxt_switches": str(switches), "nonvoluntary_ctxt_switches": "4"}
    return {7: {"State": state, "TracerPid": str(tracer), **counts}}


@pytest.mark.parametrize(
    ("before", "now", "still"),
    [
        (_thread("T (stopped)", 5), _thread("T (stopped)", 5), True),
        (_thread("t (tracing stop)", 5, 99), _thread("t (tracing stop)", 5, 99), True),
        (_thread("t (tracing stop)", 5, 99), _thread("t (tracing stop)", 6, 99), False),  # it ran in between
        (_thread("S (sleeping)", 5), _thread("T (stopped)", 5), False),
        (_thread("T (stopped)", 5), _thread("S (sleeping)", 5), False),
        ({}, _thread("T (stopped)", 5), False),
    ],
)
def test_a_thread_is_stopped_if_it_made_no_context_switch(
    before: dict[int, dict[str, str]], now: dict[int, dict[str, str]], still: bool
) -> None:
    assert bool(stopped_threads.unmoved(before, now)) is still


def test_stopped_threads_are_counted_from_proc(tmp_path: Path) -> None:
    for tid, state in (
        (41, "S (sleeping)"),
        (42, "T (stopped)"),
        (43, "t (tracing stop)"),
        (44, "Z (zombie)"),
    ):
        (tmp_path / "41" / "task" / str(tid)).mkdir(parents=True)
        folder = tmp_path / str(tid)
        folder.mkdir(exist_ok=True)
        (folder / "status").write_text(
            f"Name:\tx\nState:\t{state}\nTracerPid:\t0\n"
            "voluntary_ctxt_switches:\t3\nnonvoluntary_ctxt_switches:\t4\n"
        )

    found = stopped_threads.thread_states(ProcFs(tmp_path), 41)

    assert found == ThreadStates(threads=3, stopped=1, traced=1, tracers=(), hidden=True)
    assert found.still == 2
    with pytest.raises(ProcessLookupError):
        stopped_threads.thread_states(ProcFs(tmp_path), 40)


def test_the_description_names_signals_and_debuggers() -> None:
    gdb = Tracer(12, 99, "gdb", "gdb -p 7", "root (ann)", 1000.0, stopped=False, started_server=False)

    assert str(ThreadStates(125, 3, 122, (gdb,), hidden=False)) == (
        "of 125 threads, 3 stopped by a signal, 122 held by gdb (pid 12) of root (ann)"
    )
    assert str(ThreadStates(125, 0, 125, (), hidden=True)) == (
        "of 125 threads, 125 held by a debugger outside this pid namespace"
    )
