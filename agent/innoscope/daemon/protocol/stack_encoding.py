"""Encode and decode profile chunks and snapshots.

The profiles of a server contain each frame and each stack only once, its snapshots each function name.

msgspec checks types and ranges. ``match`` statements check arrays of variable length, such as ``[wait, trust,
frame index, …]``, because msgspec has no type for them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

import msgspec

from innoscope.daemon.protocol.messages import BadMessage, Count32, Finite, Natural, Tid, decoded, select
from innoscope.sampling.model import Frame, Trust
from innoscope.sampling.profile_history import Chunk, ClassifiedStack
from innoscope.sampling.snapshot_history import ObservedStack, SnapshotSummary

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

#: Maximum sum of the counts in a chunk, which is stored in 32 bits.
_MAX_COUNT: Final = (1 << 32) - 1
_TRUST: Final = {trust.value: trust for trust in Trust}
_Stack: TypeAlias = list[str | Natural]
_Tids: TypeAlias = tuple[Tid, ...]


class _Frame(NamedTuple):
    function: str | None
    module: str
    offset: int
    inlined: bool
    kernel: bool


class _Chunk(msgspec.Struct, frozen=True):
    start: Finite
    end: Finite
    snapshots: Count32
    snapshot_ms: Finite
    dropped: Count32
    counts: list[tuple[Natural, Count32]]


class _Chunks(msgspec.Struct, frozen=True):
    frames: list[_Frame]
    stacks: list[_Stack]
    chunks: list[_Chunk]


class _Snapshot(NamedTuple):
    at: Finite
    threads: list[tuple[str, str, Count32]]
    running: _Tids
    doing: dict[str, _Tids]


class _Snapshots(msgspec.Struct, frozen=True):
    functions: list[str]
    snapshots: list[_Snapshot]
    seen: list[list[str | Count32 | _Tids]]


def encode_chunks(chunks: Iterable[Chunk]) -> dict[str, Any]:
    """Return ``frames``, ``stacks`` (with indexes into frames) and ``chunks`` (with indexes into stacks)."""
    frames: dict[Frame, int] = {}
    stacks: dict[ClassifiedStack, int] = {}
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
    found = decoded(data, _Chunks)
    frames = [_frame(item) for item in found.frames]
    stacks = [_stack(item, frames) for item in found.stacks]
    return [_chunk(item, stacks) for item in found.chunks]


def _frame(item: _Frame) -> Frame:
    try:
        return Frame(*item)
    except (OverflowError, UnicodeError) as error:
        raise BadMessage(f"malformed frame: {error}") from error


def _stack(item: _Stack, frames: Sequence[Frame]) -> ClassifiedStack:
    match item:
        case [str(wait), str(trust), *indexes] if trust in _TRUST:
            return ClassifiedStack.of(wait, _TRUST[trust], tuple(select(frames, indexes)))
    raise BadMessage("malformed stack: expected [wait, trust, frame index, …]")


def _chunk(item: _Chunk, stacks: Sequence[ClassifiedStack]) -> Chunk:
    found = select(stacks, [index for index, _ in item.counts])
    counts = dict(zip(found, (count for _, count in item.counts), strict=True))
    if sum(counts.values()) > _MAX_COUNT:
        raise BadMessage("malformed chunk: the sum of its counts is out of range")
    return Chunk(item.start, item.end, item.snapshots, item.snapshot_ms, counts, item.dropped)


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
    found = decoded(data, _Snapshots)
    snapshots = tuple(
        SnapshotSummary(
            one.at, {(kind, wait): count for kind, wait, count in one.threads}, one.running, one.doing
        )
        for one in found.snapshots
    )
    return snapshots, tuple(_seen(item, found.functions) for item in found.seen)


def _seen(item: Sequence[object], functions: Sequence[str]) -> ObservedStack:
    match item:
        case [str(kind), str(wait), int(count), tuple(tids), *indexes]:
            return ObservedStack(kind, wait, tuple(select(functions, indexes)), count, tids)
    raise BadMessage("malformed stack: expected [kind, wait, count, threads, function index, …]")
