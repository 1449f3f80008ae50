"""Convert the result of a trace to JSON. docs/trace.md describes the keys."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from innoscope.common import sanitize
from innoscope.probes.trace import latency, text
from innoscope.sampling.render.json import frame_document, target_document

if TYPE_CHECKING:
    from innoscope.common.samples import Histogram
    from innoscope.probes.trace.model import TraceResult, Values
    from innoscope.probes.trace.server_pace import Loss
    from innoscope.sampling.fold import StackReport
    from innoscope.target.model import Target

SCHEMA = 1


def line(result: TraceResult, target: Target) -> str:
    """Return the result as one line of JSON."""
    return sanitize.dumps(document(result, target), separators=(",", ":"))


def document(result: TraceResult, target: Target) -> dict[str, Any]:
    """Return the result as plain values, with keys in the documented order."""
    return {
        "schema": SCHEMA,
        "target": target_document(target),
        "function": result.chosen.name,
        "symbols": [place.symbol for place in result.chosen.places],
        "seconds": round(result.seconds, 6),
        "calls": result.calls,
        "rate": round(result.rate, 3),
        "ended": result.ended,
        "notes": list(text.notes(result)),
        "cost": {
            "call_ns": round(result.cost.call_s * 1e9),
            "stack_ns": round(result.cost.stack_s * 1e9),
            "hits": result.hits,
            "seconds": round(result.spent, 6),
            "cpus": result.cost.cpus,
        },
        "latency": _histogram(result.latency) if result.latency else None,
        "argument": _values(result.values) if result.values else None,
        "callers": _callers(result, result.report) if result.report else None,
        "loss": _loss(result.loss) if result.loss else None,
    }


def _histogram(histogram: Histogram) -> dict[str, Any]:
    return {
        "calls": histogram.count,
        "total_ns": histogram.total_ns,
        "octaves_ns": [[1 << octave, count] for octave, count in latency.filled_range(histogram.buckets)],
    }


def _values(values: Values) -> dict[str, Any]:
    most = sorted(values.counts.items(), key=lambda item: (-item[1], item[0]))
    return {
        "number": values.argument,
        "values": [[value, count] for value, count in most],
        "no_room": values.others,
        "octaves": [
            [1 << (octave - 1) if octave else 0, count]
            for octave, count in latency.filled_range(values.octaves)
        ],
    }


def _callers(result: TraceResult, report: StackReport) -> dict[str, Any]:
    return {
        "stacks_taken": result.stacks_taken,
        "held_back": result.stacks_held_back,
        "lost": result.stacks_lost,
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
