"""Convert a latency profile to JSON. docs/latency.md describes the keys."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from innoscope.common import sanitize
from innoscope.probes.latency import text
from innoscope.sampling.render.json import target_document

if TYPE_CHECKING:
    from innoscope.probes.latency.model import LatencyResult
    from innoscope.probes.latency.shares import Breakdown
    from innoscope.target.model import Target

SCHEMA = 1


def line(result: LatencyResult, target: Target) -> str:
    """Return the result as one line of JSON."""
    return sanitize.dumps(document(result, target), separators=(",", ":"))


def document(result: LatencyResult, target: Target) -> dict[str, Any]:
    """Return the result as plain values, with keys in the documented order."""
    return {
        "schema": SCHEMA,
        "target": target_document(target),
        "began_at": round(result.began_at, 6),
        "seconds": round(result.seconds, 6),
        "ended": result.ended,
        "every": result.every,
        "statements": result.total,
        "unfinished": result.unfinished,
        "lost": result.lost,
        "notes": list(text.notes(result)),
        "cost": {
            "statement_ns": round(result.cost.call_s * 1e9),
            "stack_ns": round(result.cost.stack_s * 1e9),
            "hits": result.hits,
            "stacks": result.stacks,
            "seconds": round(result.spent, 6),
            "cpus": result.cost.cpus,
        },
        "latency": None if result.overall is None else _breakdown(result.overall),
        "digests": [
            {
                "digest": one.digest,
                "text": result.texts.get(one.digest, one.digest),
                "slowest": one.slowest,
                "latency": _breakdown(one.breakdown),
            }
            for one in result.digests
        ],
        "stacks": [
            {"wait": stack.wait, "ns": round(spent), "functions": list(stack.functions)}
            for stack, spent in result.slow_stacks
        ],
    }


def _breakdown(found: Breakdown) -> dict[str, Any]:
    return {
        "count": found.count,
        "mean_ns": round(found.mean),
        "p50_ns": found.p50,
        "p95_ns": found.p95,
        "p99_ns": found.p99,
        "max_ns": found.maximum,
        "tail_count": found.tail,
        "tail_mean_ns": round(found.tail_mean),
        "excess_ns": round(found.excess),
        "waits": [
            {
                "wait": share.wait,
                "mean": round(share.mean, 6),
                "variance": _rounded(share.variance),
                "excess": _rounded(share.excess),
            }
            for share in found.shares
        ],
    }


def _rounded(share: float | None) -> float | None:
    return None if share is None else round(share, 6)
