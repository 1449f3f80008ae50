"""Render folded stacks for the live page. Names are sent once; stacks are lists of indexes (docs/json.md)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from innoscope.sampling.render import words
from innoscope.sampling.render.json import SCHEMA

if TYPE_CHECKING:
    from innoscope.sampling.fold import StackReport


def compact(report: StackReport) -> dict[str, Any]:
    """Return the report as plain values. A stack is ``[class, threads, mark, frame, …]``, innermost first.

    Classes are indexes into ``waits``, and frames are indexes into ``names``. ``mark`` is the trust level of
    an unreliable stack, or "" for a reliable one. ``threads`` is the sum over all snapshots.
    """
    names: dict[str, int] = {}
    waits: dict[str, int] = {}
    stacks: list[list[int | str]] = []
    for group in report.fold.by_stack():
        frames = [names.setdefault(name, len(names)) for name in words.labels(group)]
        wait = waits.setdefault(group.wait, len(waits))
        stacks += [[wait, count, mark or "", *frames] for mark, count in words.split(group)]
    return {
        "schema": SCHEMA,
        "started_at": round(report.started_at, 3),
        "ended_at": round(report.ended_at, 3),
        "looks": report.snapshots,
        "threads": report.threads,
        "headline": words.headline(report),
        "notes": list(report.notes),
        "waits": list(waits),
        "names": list(names),
        "stacks": stacks,
    }
