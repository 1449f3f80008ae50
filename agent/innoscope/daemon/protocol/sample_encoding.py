"""Encode and decode the samples of busy threads. A reply has each function name and each shape only once."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any, Final

from innoscope.daemon.protocol.messages import BadMessage, expect, part
from innoscope.sampling.sessions.model import Batch, Sampled, Shape

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_TEXTS: Final = len(Shape._fields) - 1
_MAX_TEXT: Final = 1_024
_MAX_NAME: Final = 16_384
_MAX_FUNCTIONS: Final = 1_024
#: Maximum number of seconds that a snapshot represents.
_MAX_WEIGHT_S: Final = 3_600.0
_MAX_TID: Final = (1 << 31) - 1
_MAX_ID: Final = (1 << 63) - 1
_NUMBERS: Final = frozenset({int})
_NULLABLE: Final = frozenset({int, type(None)})
_DIGEST: Final = re.compile(r"[0-9a-f]{32}", re.ASCII)


def encode_samples(batch: Batch) -> dict[str, Any]:
    """Return ``functions``, ``digests``, ``shapes`` (with indices into functions) and ``snapshots``."""
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

    All snapshots must have been taken between two Unix times.
    """
    functions = [_text(name, _MAX_NAME) for name in part(data, "functions", list)]
    shapes = [_shape(item, functions) for item in part(data, "shapes", list)]
    span = int(earliest * 1e6), int(latest * 1e6)
    snapshots = [_sampled(item, len(shapes), span) for item in part(data, "snapshots", list)]
    return Batch(shapes, snapshots, _digests(part(data, "digests", dict)))


def _digests(data: Mapping[Any, Any]) -> dict[str, str]:
    for identifier in data:
        _digest(identifier)
    return {identifier: _text(text, _MAX_TEXT) for identifier, text in data.items()}


def _digest(identifier: str | None) -> None:
    if identifier is not None and not _DIGEST.fullmatch(identifier):
        raise BadMessage(f"malformed digest: {identifier!r:.60}")


def _shape(data: Any, functions: Sequence[str]) -> Shape:
    if not isinstance(data, list) or not _TEXTS <= len(data) <= _TEXTS + _MAX_FUNCTIONS:
        raise BadMessage("malformed shape: expected texts and function indices")
    texts = [None if text is None else _text(text, _MAX_TEXT) for text in data[:_TEXTS]]
    numbers = data[_TEXTS:]
    _check_column("function indices", numbers, 0, len(functions) - 1)
    shape = Shape._make([*texts, tuple([functions[number] for number in numbers])])
    _digest(shape.digest)
    _digest(shape.blocker_digest)
    return shape


def _text(value: Any, most: int) -> str:
    text: str = expect(value, str)
    if len(text) > most:
        raise BadMessage(f"malformed text: {len(text):,} characters, the limit is {most:,}")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise BadMessage(f"malformed text: {error.reason}") from error
    return text


def _sampled(data: Any, shapes: int, span: tuple[int, int]) -> Sampled:
    if not isinstance(data, list) or len(data) != 6:
        raise BadMessage("malformed snapshot: expected time, weight and four columns")
    at, weight = expect(data[0], int), expect(data[1], float)
    columns: list[list[Any]] = [expect(column, list) for column in data[2:]]
    tids, numbers, connections, blockers = columns
    if not span[0] <= at <= span[1]:
        raise BadMessage(f"malformed snapshot: the time {at} is not between {span[0]} and {span[1]}")
    if not (math.isfinite(weight) and 0 <= weight <= _MAX_WEIGHT_S):
        raise BadMessage(f"malformed snapshot: invalid weight {weight!r}")
    if len({len(column) for column in columns}) > 1:
        raise BadMessage("malformed snapshot: columns of different lengths")
    _check_column("thread ids", tids, 1, _MAX_TID)
    _check_column("shape indices", numbers, 0, shapes - 1)
    for ids in (connections, blockers):
        _check_column("connection ids", ids, 0, _MAX_ID, nullable=True)
    return Sampled(at, weight, tids, numbers, connections, blockers)


def _check_column(what: str, values: list[Any], least: int, most: int, *, nullable: bool = False) -> None:
    """Raise BadMessage unless all values are integers in a range. All are checked in one pass."""
    if not {*map(type, values)} <= (_NULLABLE if nullable else _NUMBERS):
        raise BadMessage(f"malformed {what}: expected integers")
    present = [value for value in values if value is not None] if nullable else values
    if present and not (least <= min(present) and max(present) <= most):
        raise BadMessage(f"malformed {what}: out of range")
