"""What was seen, for programs: docs/trace.md has the keys."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from innoscope.common import sanitize
from innoscope.probes.trace import latency, text
from innoscope.sampling.render.json import frame_document, target_document

if TYPE_CHECKING:
    from innoscope.common.samples import Histogram
    from innoscope.probes.trace.model import Seen, Values
    from innoscope.probes.trace.server_pace import Loss
    from innoscope.sampling.fold import Report
    from innoscope.target.model import Target

SCHEMA = 1


def line(seen: Seen, target: Target) -> str:
    """One line of JSON."""
    return sanitize.dumps(document(seen, target), separators=(",", ":"))


def document(seen: Seen, target: Target) -> dict[str, Any]:
    """Plain values, keys in the documented order."""
    return {
        "schema": SCHEMA,
        "target": target_document(target),
        "function": seen.chosen.name,
        "symbols": [place.symbol for place in seen.chosen.places],
        "seconds": round(seen.seconds, 6),
        "calls": seen.calls,
        "rate": round(seen.rate, 3),
        "ended": seen.ended,
        "notes": list(text.notes(seen)),
        "cost": {
            "call_ns": round(seen.cost.call_s * 1e9),
            "stack_ns": round(seen.cost.stack_s * 1e9),
            "hits": seen.hits,
            "seconds": round(seen.spent, 6),
            "cpus": seen.cost.cpus,
        },
        "latency": _histogram(seen.latency) if seen.latency else None,
        "argument": _values(seen.values) if seen.values else None,
        "callers": _callers(seen, seen.report) if seen.report else None,
        "loss": _loss(seen.loss) if seen.loss else None,
    }


def _histogram(histogram: Histogram) -> dict[str, Any]:
    return {
        "calls": histogram.count,
        "total_ns": histogram.total_ns,
        "octaves_ns": [[1 << octave, count] for octave, count in latency.range_of(histogram.buckets)],
    }


def _values(values: Values) -> dict[str, Any]:
    most = sorted(values.counts.items(), key=lambda item: (-item[1], item[0]))
    return {
        "number": values.argument,
        "values": [[value, count] for value, count in most],
        "no_room": values.others,
        "octaves": [
            [1 << (octave - 1) if octave else 0, count] for octave, count in latency.range_of(values.octaves)
        ],
    }


def _callers(seen: Seen, report: Report) -> dict[str, Any]:
    return {
        "stacks_taken": seen.stacks_taken,
        "held_back": seen.stacks_held_back,
        "lost": seen.stacks_lost,
        "stacks": [
            {
                "calls": group.count,
                "share": round(group.count / max(report.shown, 1), 6),
                "trust": {trust.value: count for trust, count in group.trust.items()},
                "frames": [frame_document(frame) for frame in group.frames],
            }
            for group in report.fold.by_stack()
        ],
    }


def _loss(loss: Loss) -> dict[str, Any]:
    return {
        "cpu_seconds": round(loss.spent, 6),
        "share": round(loss.share, 6),
        "before": loss.before,
        "during": loss.during,
        "no_sql": loss.why_no_sql,
    }
