"""Render a file for speedscope.app, with a profile of all threads and one profile per wait class."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import innoscope
from innoscope.common import sanitize
from innoscope.sampling.classify import label
from innoscope.sampling.render import words

if TYPE_CHECKING:
    from collections.abc import Iterator

    from innoscope.sampling.fold import FoldedGroup, StackReport, Unit


class _Frames:
    """The table of frames, shared by all profiles of a file."""

    def __init__(self) -> None:
        self.table: list[dict[str, str]] = []
        self._index: dict[tuple[str, str], int] = {}

    def number(self, name: str, module: str) -> int:
        """Return the index of a frame; add the frame if it is new."""
        known = self._index.get((name, module))
        if known is None:
            known = self._index[name, module] = len(self.table)
            self.table.append({"name": name, "file": module} if module else {"name": name})
        return known


def document(report: StackReport, *, limit: int | None = None) -> dict[str, Any]:
    """Return the whole file as plain values: samples from root to leaf, weights in the report's unit."""
    frames = _Frames()
    unit = report.unit
    profiles = [_profile(f"all {unit.title}", report.fold.by_stack()[:limit], frames, unit)]
    profiles += [
        _profile(label(group.wait), group.parts[:limit], frames, unit) for group in report.fold.by_wait()
    ]
    return {
        "$schema": "https://www.speedscope.app/file-format-schema.json",
        "exporter": f"innoscope@{innoscope.__version__}",
        "name": f"{words.server(report.target)}: {words.headline(report)}",
        "activeProfileIndex": 0,
        "shared": {"frames": frames.table},
        "profiles": profiles,
    }


def _profile(name: str, groups: list[FoldedGroup], frames: _Frames, unit: Unit) -> dict[str, Any]:
    samples: list[list[int]] = []
    weights: list[int] = []
    for group in groups:
        stack = [
            frames.number(text, frame.module)
            for text, frame in zip(words.labels(group), group.frames, strict=True)
        ][::-1] or [frames.number("[no frames]", "")]
        for mark, count in words.split(group):
            samples.append(([frames.number(f"[{mark}]", "")] if mark else []) + stack)
            weights.append(count)
    return {
        "type": "sampled",
        "name": name,
        "unit": unit.speedscope,
        "startValue": 0,
        "endValue": sum(weights),
        "samples": samples,
        "weights": weights,
    }


def lines(report: StackReport, *, limit: int | None = None) -> Iterator[str]:
    """Yield the file as one line."""
    yield sanitize.dumps(document(report, limit=limit), separators=(",", ":"))
