"""Encode and decode profile chunks and snapshots. A reply contains each frame and each stack only once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from innoscope.daemon.protocol.messages import BadMessage, expect, part
from innoscope.sampling.model import Frame, Trust
from innoscope.sampling.profile_history import Chunk, Stack
from innoscope.sampling.snapshot_history import ObservedStack, SnapshotSummary

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


def encode_chunks(chunks: Iterable[Chunk]) -> dict[str, Any]:
    """Return ``frames``, ``stacks`` (with indices into frames) and ``chunks`` (with indices into stacks)."""
    frames: dict[Frame, int] = {}
    stacks: dict[Stack, int] = {}
    encoded = [
        {
            "start": chunk.start,
            "end": chunk.end,
            "snapshots": chunk.snapshots,
            "snapshot_ms": chunk.snapshot_ms,
            "dropped": chunk.dropped,
            "counts": [
                [stacks.setdefault(stack, len(stacks)), count] for stack, count in chunk.counts.items()
            ],
        }
        for chunk in chunks
    ]
    return {
        "stacks": [
            [
                stack.wait,
                stack.trust.value,
                *(frames.setdefault(frame, len(frames)) for frame in stack.frames),
            ]
            for stack in stacks
        ],
        "frames": [
            [frame.function, frame.module, frame.offset, frame.inlined, frame.kernel] for frame in frames
        ],
        "chunks": encoded,
    }


def decode_chunks(data: Any) -> list[Chunk]:
    """Decode the result of ``encode_chunks``. Raise BadMessage if it is invalid."""
    frames = [_frame(item) for item in part(data, "frames", list)]
    stacks = [_stack(item, frames) for item in part(data, "stacks", list)]
    return [_chunk(item, stacks) for item in part(data, "chunks", list)]


def _frame(data: Any) -> Frame:
    if not isinstance(data, list) or len(data) != 5:
        raise BadMessage("malformed frame: expected [function, module, offset, inlined, kernel]")
    function, module, offset, inlined, kernel = data
    name = None if function is None else expect(function, str)
    rest = expect(module, str), expect(offset, int), expect(inlined, bool), expect(kernel, bool)
    try:
        return Frame(name, *rest)
    except (OverflowError, UnicodeError) as error:
        raise BadMessage(f"malformed frame: {error}") from error


def _stack(data: Any, frames: Sequence[Frame]) -> Stack:
    if not isinstance(data, list) or len(data) < 2:
        raise BadMessage("malformed stack: expected [wait, trust, frame index, …]")
    wait, trust, *numbers = data
    try:
        level = Trust(trust)
    except ValueError as error:
        raise BadMessage(f"malformed stack: unknown trust level {trust!r:.60}") from error
    return Stack.of(expect(wait, str), level, tuple(_at(frames, number) for number in numbers))


def _chunk(data: Any, stacks: Sequence[Stack]) -> Chunk:
    counts = {}
    for pair in part(data, "counts", list):
        if not isinstance(pair, list) or len(pair) != 2:
            raise BadMessage("malformed count: expected [stack index, threads]")
        counts[_at(stacks, pair[0])] = expect(pair[1], int)
    return Chunk(
        part(data, "start", float),
        part(data, "end", float),
        part(data, "snapshots", int),
        part(data, "snapshot_ms", float),
        counts,
        part(data, "dropped", int),
    )


def _at(items: Sequence[Any], number: Any) -> Any:
    if not 0 <= expect(number, int) < len(items):
        raise BadMessage(f"index {number} out of range: there are {len(items):,} items")
    return items[number]


def encode_snapshots(snapshots: Iterable[SnapshotSummary], seen: Iterable[ObservedStack]) -> dict[str, Any]:
    """Return ``snapshots``, ``functions`` and ``seen``.

    An item of ``seen`` is ``[kind, wait, count, [tid, …], function index, …]``.
    """
    functions: dict[str, int] = {}
    stacks = [
        [
            one.kind,
            one.wait,
            one.count,
            list(one.tids),
            *(functions.setdefault(name, len(functions)) for name in one.functions),
        ]
        for one in seen
    ]
    encoded = [
        [
            snapshot.at,
            [[kind, wait, count] for (kind, wait), count in snapshot.threads.items()],
            list(snapshot.running),
            {activity: list(tids) for activity, tids in snapshot.doing.items()},
        ]
        for snapshot in snapshots
    ]
    return {"snapshots": encoded, "functions": list(functions), "seen": stacks}


def decode_snapshots(data: Any) -> tuple[tuple[SnapshotSummary, ...], tuple[ObservedStack, ...]]:
    """Decode the result of ``encode_snapshots``. Raise BadMessage if it is invalid."""
    functions = [expect(name, str) for name in part(data, "functions", list)]
    snapshots = tuple(_snapshot(item) for item in part(data, "snapshots", list))
    return snapshots, tuple(_seen(item, functions) for item in part(data, "seen", list))


def _snapshot(data: Any) -> SnapshotSummary:
    if not isinstance(data, list) or len(data) != 4:
        raise BadMessage("malformed snapshot: expected [time, threads, running, doing]")
    at, threads, running, doing = data
    counts = {}
    for item in expect(threads, list):
        if not isinstance(item, list) or len(item) != 3:
            raise BadMessage("malformed snapshot: expected threads as [kind, wait, count]")
        counts[expect(item[0], str), expect(item[1], str)] = expect(item[2], int)
    activities = {expect(name, str): _tids(tids) for name, tids in expect(doing, dict).items()}
    return SnapshotSummary(expect(at, float), counts, _tids(running), activities)


def _tids(data: Any) -> tuple[int, ...]:
    return tuple(expect(tid, int) for tid in expect(data, list))


def _seen(data: Any, functions: Sequence[str]) -> ObservedStack:
    if not isinstance(data, list) or len(data) < 4:
        raise BadMessage("malformed stack: expected [kind, wait, count, threads, function index, …]")
    kind, wait, count, tids, *numbers = data
    if not all(0 <= expect(number, int) < len(functions) for number in numbers):
        raise BadMessage("malformed stack: function index out of range")
    names = tuple(functions[number] for number in numbers)
    return ObservedStack(expect(kind, str), expect(wait, str), names, expect(count, int), _tids(tids))
