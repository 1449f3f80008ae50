"""Render a gzipped profile.proto for ``go tool pprof``, Pyroscope and Parca."""

from __future__ import annotations

import gzip
from dataclasses import dataclass
from typing import TYPE_CHECKING

from innoscope import _native
from innoscope.common import sanitize
from innoscope.sampling.model import Frame
from innoscope.sampling.render import words

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from innoscope.sampling.fold import StackReport


@dataclass(frozen=True, slots=True)
class PprofSample:
    """One stack in the profile. Frames are innermost first."""

    frames: Sequence[Frame]
    count: int
    labels: Mapping[str, str]


def samples(report: StackReport) -> Iterator[PprofSample]:
    """Yield the stacks of a report. Unreliable stacks get a root such as ``[stale]``."""
    for group in report.fold.by_stack():
        frames = [
            Frame(
                _name(frame.function),
                sanitize.line(frame.module),
                frame.offset,
                frame.inlined,
                frame.kernel,
            )
            for frame in group.frames
        ]
        for mark, count in words.split(group):
            labels = {"wait": group.wait} | ({"trust": mark} if mark else {})
            root = [Frame(f"[{mark}]", "", 0)] if mark else []
            yield PprofSample(frames + root, count, labels)


def _name(function: str | None) -> str | None:
    return None if function is None else sanitize.line(function)


def encode(report: StackReport) -> bytes:
    """Return the whole profile, gzipped. The report's unit defines the sample type, such as threads/count."""
    span_s = (
        report.ended_at - report.started_at + (report.durations_ms[-1] / 1e3 if report.durations_ms else 0)
    )
    raw = _native.pprof(
        list(samples(report)),
        sample_type=report.unit.pprof,
        taken_at_ns=int(report.started_at * 1e9),
        duration_ns=int(span_s * 1e9),
    )
    return gzip.compress(raw, mtime=0)
