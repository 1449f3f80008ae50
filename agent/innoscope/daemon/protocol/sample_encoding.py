"""Encode and decode samples of busy threads.

Each server's part of a reply contains each function name and each shape only once.

msgspec checks types, ranges and lengths. This module checks indexes, the times of snapshots, and that columns
have equal lengths. Texts that UTF-8 cannot encode are rejected, because the history cannot store them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple, TypeAlias

import msgspec
from msgspec import Meta

from innoscope.daemon.protocol.messages import BadMessage, Natural, decoded, select
from innoscope.sampling.sessions.model import Batch, Sampled, SharedValues

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_TEXTS: Final = len(SharedValues._fields) - 1
_MAX_FUNCTIONS: Final = 1_024

_Text: TypeAlias = Annotated[str, Meta(max_length=1_024)]
_Function: TypeAlias = Annotated[str, Meta(max_length=16_384)]
_Digest: TypeAlias = Annotated[str, Meta(pattern=r"\A[0-9a-f]{32}\Z")]
_Tid: TypeAlias = Annotated[int, Meta(ge=1, le=(1 << 31) - 1)]
_Connections: TypeAlias = list[Annotated[int, Meta(ge=0, le=(1 << 63) - 1)] | None]
#: The texts of a SharedValues, then indexes into ``functions``.
_Shape: TypeAlias = Annotated[
    list[_Text | Natural | None], Meta(min_length=_TEXTS, max_length=_TEXTS + _MAX_FUNCTIONS)
]


class _Sampled(NamedTuple):
    at: int
    #: The number of seconds that the snapshot represents.
    weight: Annotated[float, Meta(ge=0, le=3_600)]
    tids: list[_Tid]
    shapes: list[Natural]
    connections: _Connections
    blockers: _Connections


class _Batch(msgspec.Struct, frozen=True):
    functions: list[_Function]
    digests: dict[_Digest, _Text]
    shapes: list[_Shape]
    snapshots: list[_Sampled]


def encode_samples(batch: Batch) -> dict[str, Any]:
    """Return ``functions``, ``digests``, ``shapes`` (with indexes into functions) and ``snapshots``."""
    functions: dict[str, int] = {}
    shapes = [
        [*shape[:-1], *(functions.setdefault(name, len(functions)) for name in shape.stack)]
        for shape in batch.shapes
    ]
    snapshots = [
        [one.at, one.weight, one.tids, one.shapes, one.connections, one.blockers] for one in batch.snapshots
    ]
    return {
        "functions": list(functions),
        "digests": dict(batch.digests),
        "shapes": shapes,
        "snapshots": snapshots,
    }


def decode_samples(data: Any, earliest: float, latest: float) -> Batch:
    """Decode the result of ``encode_samples``. Raise BadMessage if it is invalid.

    All snapshots must have been taken between the Unix times ``earliest`` and ``latest``.
    """
    found = decoded(data, _Batch)
    _check_encodable(found.functions)
    _check_encodable(found.digests.values())
    shapes = [_shape(item, found.functions) for item in found.shapes]
    span = int(earliest * 1e6), int(latest * 1e6)
    return Batch(shapes, [_sampled(item, shapes, span) for item in found.snapshots], found.digests)


def _shape(item: Sequence[str | int | None], functions: Sequence[str]) -> SharedValues:
    texts = [text for text in item[:_TEXTS] if not isinstance(text, int)]
    if len(texts) < _TEXTS:
        raise BadMessage("malformed shape: expected texts and function indexes")
    _check_encodable(text for text in texts if text is not None)
    shape = SharedValues._make([*texts, tuple(select(functions, item[_TEXTS:]))])
    for digest in (shape.digest, shape.blocker_digest):
        if digest is not None:
            decoded(digest, _Digest)
    return shape


def _check_encodable(texts: Iterable[str]) -> None:
    try:
        "".join(texts).encode()
    except UnicodeEncodeError as error:
        raise BadMessage(f"malformed text: {error.reason}") from error


def _sampled(item: _Sampled, shapes: Sequence[SharedValues], span: tuple[int, int]) -> Sampled:
    if not span[0] <= item.at <= span[1]:
        raise BadMessage(f"malformed snapshot: the time {item.at} is not between {span[0]} and {span[1]}")
    if len({len(column) for column in item[2:]}) > 1:
        raise BadMessage("malformed snapshot: columns of different lengths")
    if item.shapes and max(item.shapes) >= len(shapes):
        raise BadMessage("malformed snapshot: shape index out of range")
    return Sampled(*item)
