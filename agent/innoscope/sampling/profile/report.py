"""Convert a profile to a report, for the output formats of ``innoscope stacks``, and to profile JSON."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from innoscope.common import sanitize
from innoscope.sampling.classify import label
from innoscope.sampling.fold import Filter, StackReport
from innoscope.sampling.model import Trust
from innoscope.sampling.profile.model import SAMPLES
from innoscope.sampling.render import words
from innoscope.sampling.render.json import SCHEMA, frame_document, target_document

if TYPE_CHECKING:
    from innoscope.sampling.profile.model import Profile

#: Maximum number of wait classes in the headline.
_NAMED = 6


def report(profile: Profile, wanted: Filter | None = None) -> StackReport:
    """Return a report with the profile's stacks, in the profile's unit."""
    result = StackReport(profile.target, wanted, profile.unit)
    result.snapshots, result.method = 1, profile.method
    result.started_at, result.ended_at = profile.began_at, profile.began_at + profile.seconds
    result.notes |= profile.notes
    result.ended = profile.ended
    for row in profile.rows:
        if row.number:
            result.put(row.thread, row.number)
    if profile.lost:
        result.notes[words.lost_records(profile.lost)] = None
    result.headline = headline(profile, result)
    return result


def headline(profile: Profile, folded: StackReport) -> str:
    """Return the kind and duration of the profile, its main wait classes, and the quality of its stacks."""
    classes = ", ".join(
        f"{100 * count / max(folded.threads, 1):.1f} % {label(wait)}"
        for wait, count in folded.waits.most_common(_NAMED)
    )
    what = _on_cpu(profile, folded) if profile.unit is SAMPLES else _off_cpu(profile)
    return " · ".join((f"{what}: {classes or 'none'}", _completeness(profile, folded), "not stopped"))


def _on_cpu(profile: Profile, folded: StackReport) -> str:
    cpus = os.cpu_count() or 1
    return (
        f"{folded.threads:,} samples in {profile.seconds:.1f} s, one per "
        f"{profile.period_ns / 1e6:.1f} ms of CPU time; the server used {profile.cpu_seconds:.2f} s of "
        f"{cpus * profile.seconds:.1f} s on {cpus} CPUs"
    )


def _off_cpu(profile: Profile) -> str:
    threads = profile.threads
    wall = sum(thread.wall_ns for thread in threads) / 1e9
    running, blocked, runnable = (
        sum(getattr(thread, name) for thread in threads) / 1e9
        for name in ("running_ns", "blocked_ns", "runnable_ns")
    )
    return (
        f"{len(threads):,} threads in {profile.seconds:.1f} s, {wall:,.1f} s in total: {running:,.2f} s on a "
        f"CPU, {runnable:,.2f} s ready to run, {blocked:,.1f} s blocked; off the CPU"
    )


def _completeness(profile: Profile, folded: StackReport) -> str:
    sound = folded.tally[Trust.EXACT] + folded.tally[Trust.ON_CPU]
    complete = f"{100 * sound / max(folded.threads, 1):.1f} % with a complete stack"
    if profile.unit is SAMPLES:
        return complete
    off = sum(thread.blocked_ns + thread.runnable_ns for thread in profile.threads)
    captured = 100 * profile.seen_ns / max(off, 1)
    return f"{complete}; {captured:.1f} % of the time in waits whose own stack was captured"


def document(profile: Profile, folded: StackReport) -> dict[str, Any]:
    """Return the JSON document (docs/json.md). Counts are in the profile's unit; the largest come first."""
    return {
        "schema": SCHEMA,
        "target": target_document(profile.target),
        "profile": profile.kind,
        "method": profile.method,
        "unit": profile.unit.name,
        "began_at": round(profile.began_at, 6),
        "seconds": round(profile.seconds, 6),
        "ended": profile.ended,
        "period_ns": profile.period_ns or None,
        "cpu_seconds": round(profile.cpu_seconds, 3) if profile.unit is SAMPLES else None,
        "records": profile.records,
        "bytes": profile.bytes,
        "lost": profile.lost,
        "total": folded.threads,
        "tally": {trust.value: folded.tally[trust] for trust in Trust},
        "waits": dict(folded.waits.most_common()),
        "notes": list(folded.notes),
        "seen_ns": profile.seen_ns,
        "threads": [
            {
                "tid": thread.tid,
                "comm": thread.comm,
                "running_ns": thread.running_ns,
                "blocked_ns": thread.blocked_ns,
                "runnable_ns": thread.runnable_ns,
            }
            for thread in profile.threads
        ],
        "stacks": [
            {
                "wait": group.wait,
                "count": group.count,
                "trust": {trust.value: count for trust, count in group.trust.items()},
                "threads": list(group.tids),
                "frames": [frame_document(frame) for frame in group.frames],
            }
            for group in folded.fold.by_stack()
        ],
    }


def line(profile: Profile, folded: StackReport) -> str:
    """Return the JSON document as one line."""
    return sanitize.dumps(document(profile, folded), separators=(",", ":"))
