"""Render single snapshots and folded snapshots as JSON in schema 1 (docs/json.md)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from innoscope.common import sanitize
from innoscope.sampling.model import Trust

if TYPE_CHECKING:
    from innoscope.sampling.fold import StackReport
    from innoscope.sampling.model import Frame, Snapshot, Thread
    from innoscope.target.model import Query, Target

SCHEMA = 1


def document(snapshot: Snapshot) -> dict[str, Any]:
    """Return one snapshot as plain values, with keys in the documented order."""
    stacks: dict[int, list[dict[str, Any]]] = {}  # threads with the same stack share one list
    return {
        "schema": SCHEMA,
        "target": target_document(snapshot.target),
        "method": snapshot.method,
        "taken_at": round(snapshot.taken_at, 6),
        "duration_ms": round(snapshot.duration_ms, 3),
        "tally": snapshot.tally,
        "waits": snapshot.waits,
        "notes": list(snapshot.notes),
        "threads": [_thread(thread, stacks) for thread in snapshot.threads],
    }


def line(snapshot: Snapshot) -> str:
    """Return one snapshot as one line of JSON."""
    return sanitize.dumps(document(snapshot), separators=(",", ":"))


def profile(report: StackReport) -> dict[str, Any]:
    """Return folded snapshots as plain values: threads summed over snapshots, stacks largest first."""
    return {
        "schema": SCHEMA,
        "target": target_document(report.target),
        "method": report.method,
        "started_at": round(report.started_at, 6),
        "ended_at": round(report.ended_at, 6),
        "looks": report.snapshots,
        "tally": {"threads": report.threads} | {trust.value: report.tally[trust] for trust in Trust},
        "waits": dict(report.waits.most_common()),
        "notes": list(report.notes),
        "stacks": [
            {
                "wait": group.wait,
                "threads": group.count,
                "trust": {trust.value: count for trust, count in group.trust.items()},
                "frames": [frame_document(frame) for frame in group.frames],
            }
            for group in report.fold.by_stack()
        ],
    }


def profile_line(report: StackReport) -> str:
    """Return the folded snapshots as one line of JSON."""
    return sanitize.dumps(profile(report), separators=(",", ":"))


def target_document(target: Target) -> dict[str, Any]:
    """Return a server's fields as plain values."""
    return {
        "pid": target.pid,
        "start_time": target.start_time,
        "flavour": target.flavour,
        "version": list(target.version),
        "version_text": target.version_text,
        "version_from": target.version_from,
        "executable": target.executable,
        "deleted": target.deleted,
        "build_id": target.build_id,
        "socket": target.socket,
        "port": target.port,
        "datadir": target.datadir,
        "threads": target.threads,
        "root": target.root,
        "container": target.container,
        "symbols": target.symbols,
    }


def _thread(thread: Thread, stacks: dict[int, list[dict[str, Any]]]) -> dict[str, Any]:
    frames = stacks.get(id(thread.frames))
    if frames is None:
        frames = stacks[id(thread.frames)] = [frame_document(frame) for frame in thread.frames]
    return {
        "tid": thread.tid,
        "ns_tid": thread.ns_tid,
        "comm": thread.comm,
        "state": thread.state,
        "trust": thread.trust.value,
        "wait": thread.wait,
        "syscall": thread.syscall,
        "query": _query(thread.query) if thread.query else None,
        "frames": frames,
    }


def frame_document(frame: Frame) -> dict[str, Any]:
    """Return a frame's fields as plain values."""
    return {
        "function": frame.function,
        "module": frame.module,
        "offset": frame.offset,
        "inlined": frame.inlined,
        "kernel": frame.kernel,
    }


def _query(query: Query) -> dict[str, Any]:
    return {
        "connection_id": query.connection_id,
        "user": query.user,
        "host": query.host,
        "db": query.db,
        "command": query.command,
        "state": query.state,
        "seconds": query.seconds,
        "digest_text": query.digest_text,
        "text": query.text,
        "text_bytes": query.text_bytes,
        "trust": query.trust,
    }
