"""Render folded stacks, ``root;…;leaf count``, as input for flame graph tools."""

from __future__ import annotations

from typing import TYPE_CHECKING

from innoscope.sampling.render import words

if TYPE_CHECKING:
    from collections.abc import Iterator

    from innoscope.sampling.fold import StackReport


def lines(report: StackReport, *, limit: int | None = None) -> Iterator[str]:
    """Yield one line per stack. An unreliable stack gets an extra root such as ``[stale]``."""
    counts: dict[str, int] = {}
    for group in report.fold.by_stack()[:limit]:
        path = [name.replace(";", ":") for name in reversed(words.labels(group))] or ["[no frames]"]
        for mark, count in words.split(group):
            line = ";".join(([f"[{mark}]"] if mark else []) + path)
            counts[line] = counts.get(line, 0) + count
    for line, count in counts.items():
        yield f"{line} {count}"
