"""Encode and decode the messages on the sensor's socket.

A connection carries one request and one reply. Each consists of a 4-byte length and a JSON body. Neither side
trusts the other: the length is checked before any byte of the body is read, and msgspec checks types and
ranges. ``select`` checks indexes into other parts of a message. The standard library parses the JSON, because
samples may be ``Infinity`` or ``NaN``, which msgspec does not parse.
"""

from __future__ import annotations

import json
import struct
import sys
import time
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeAlias, TypeVar

import msgspec
from msgspec import Meta

from innoscope.common.errors import BadFile
from innoscope.common.json_size import text_bytes
from innoscope.common.samples import Histogram, Outcome, Sample
from innoscope.common.supervision import Trouble
from innoscope.common.typed import convert_untrusted
from innoscope.target.model import Target

if TYPE_CHECKING:
    import socket
    from collections.abc import Iterable, Sequence


#: Protocol version: increment it after a change that prevents older clients from decoding the replies.
VERSION: Final = 3
REQUEST_BYTES: Final = 64 << 10
REPLY_BYTES: Final = 16 << 20
_LENGTH: Final = struct.Struct("!I")
_PIECE: Final = 1 << 18
#: Size reserved for the fields of a reply to ``collect`` that do not depend on the servers.
_OWN_BYTES: Final = 1 << 20
#: Maximum size in bytes of a target's text in JSON. Only paths with characters that JSON escapes can exceed
#: it.
_TEXT_BYTES: Final = 4096
#: Number of characters to which a longer text is cut. Each character takes at most 12 bytes in JSON.
_CUT_CHARACTERS: Final = _TEXT_BYTES // 12
#: Maximum number of histogram buckets. Bucket bounds are powers of two in nanoseconds, so 64 of them cover
#: more than 500 years.
_BUCKETS: Final = 64
T = TypeVar("T")
#: A metric and the values of its labels.
_Series: TypeAlias = tuple[str, tuple[str, ...]]
_Numbers: TypeAlias = dict[_Series, int]

Natural: TypeAlias = Annotated[int, Meta(ge=0)]
#: A count that fits into 32 bits.
Count32: TypeAlias = Annotated[int, Meta(ge=0, le=(1 << 32) - 1)]
#: A thread id.
Tid: TypeAlias = Annotated[int, Meta(ge=0, le=(1 << 31) - 1)]
#: A number that is neither infinite nor NaN.
Finite: TypeAlias = Annotated[float, Meta(ge=-sys.float_info.max, le=sys.float_info.max)]
#: ``[total_ns, bucket, …]``
_Counts: TypeAlias = Annotated[list[Natural], Meta(min_length=1, max_length=_BUCKETS + 1)]
#: Indexes into ``series``, and their values.
_Samples: TypeAlias = tuple[list[Natural], list[int | float | _Counts]]


class BadMessage(BadFile):
    """A message that is too long, truncated or malformed."""


class TooSlow(Exception):
    """The peer did not send or receive a whole message before the deadline."""


@dataclass(frozen=True, slots=True)
class ServerReply:
    """The sensor's report on one server. Exited servers are reported for up to an hour, with mysqld_up 0."""

    name: str
    target: Target
    outcomes: tuple[Outcome, ...]


@dataclass(frozen=True, slots=True)
class Reply:
    """The reply to ``collect``. ``boot_id`` and ``pid`` identify the sensor's process, to detect restarts."""

    boot_id: str
    pid: int
    cpu_seconds: float
    rss_bytes: int
    version: str
    servers: tuple[ServerReply, ...]
    sent_at: float
    trouble: Trouble = field(default_factory=Trouble)


def send(wire: socket.socket, message: Any, limit: int, deadline: float) -> None:
    """Send one message before the monotonic time ``deadline``.

    Raise TooSlow, BadMessage or OSError on failure.
    """
    body = json.dumps(message, separators=(",", ":")).encode()
    if len(body) > limit:
        raise BadMessage(f"cannot send a message of {len(body):,} bytes: the limit is {limit:,}")
    rest = memoryview(_LENGTH.pack(len(body)) + body)
    while rest:
        _set_timeout(wire, deadline)
        try:
            rest = rest[wire.send(rest[:_PIECE]) :]
        except TimeoutError as error:
            raise TooSlow from error


def receive(wire: socket.socket, limit: int, deadline: float) -> Any:
    """Receive one message before the monotonic time ``deadline``.

    Raise TooSlow, BadMessage or OSError on failure.
    """
    (length,) = _LENGTH.unpack(_exactly(wire, _LENGTH.size, deadline))
    if length > limit:
        raise BadMessage(f"cannot receive a message of {length:,} bytes: the limit is {limit:,}")
    try:
        return json.loads(_exactly(wire, length, deadline))
    except (ValueError, RecursionError) as error:
        raise BadMessage(f"cannot parse a message as JSON: {error}") from error


def _exactly(wire: socket.socket, size: int, deadline: float) -> bytes:
    parts = bytearray()
    while len(parts) < size:
        _set_timeout(wire, deadline)
        try:
            part = wire.recv(min(size - len(parts), _PIECE))
        except TimeoutError as error:
            raise TooSlow from error
        if not part:
            raise BadMessage(f"truncated message: {len(parts):,} of {size:,} bytes")
        parts += part
    return bytes(parts)


def _set_timeout(wire: socket.socket, deadline: float) -> None:
    rest = deadline - time.monotonic()
    if rest <= 0:
        raise TooSlow
    wire.settimeout(rest)


def encode_servers(servers: Iterable[ServerReply], most_bytes: int = REPLY_BYTES) -> dict[str, Any]:
    """Return ``series`` and ``servers``. A series that several servers share is listed only once.

    ``most_bytes``, less ``_OWN_BYTES``, are divided equally among the servers. A collector whose results do
    not fit into its server's share is reported as failed, so that one server cannot keep the others out of
    the reply.
    """
    every = list(servers)
    share = (most_bytes - _OWN_BYTES) // max(1, len(every))
    numbers: _Numbers = {}
    encoded = [_encode_server(server, numbers, share) for server in every]
    return {"series": [[metric, *labels] for metric, labels in numbers], "servers": encoded}


def _encode_server(server: ServerReply, numbers: _Numbers, share: int) -> dict[str, Any]:
    target = encode_target(server.target)
    left = share - _json_bytes(target)
    outcomes = []
    for outcome in server.outcomes:
        before = len(numbers)
        encoded = _encode_outcome(outcome, numbers)
        size = _json_bytes(encoded)
        if len(numbers) > before:
            size += _json_bytes(list(islice(numbers, before, None)))
        if size > left:
            while len(numbers) > before:
                numbers.popitem()
            reason = f"error: the results of all collectors take more than {share:,} bytes, not sent"
            encoded = _encode_outcome(replace(outcome, success=False, samples=(), past=(), reason=reason), {})
            size = _json_bytes(encoded)
        left -= size
        outcomes.append(encoded)
    return {"name": server.name, "target": target, "outcomes": outcomes}


def _json_bytes(value: Any) -> int:
    return len(json.dumps(value))


def _encode_outcome(outcome: Outcome, numbers: _Numbers) -> dict[str, Any]:
    return {
        "collector": outcome.collector,
        "success": outcome.success,
        "seconds": outcome.seconds,
        "reason": outcome.reason,
        "samples": _encode_samples(outcome.samples, numbers),
        "past": _encode_samples(outcome.past, numbers),
    }


def _encode_samples(samples: Sequence[Sample], numbers: _Numbers) -> list[list[Any]]:
    return [
        [numbers.setdefault((metric, labels), len(numbers)) for metric, _, labels in samples],
        [
            [value.total_ns, *value.buckets] if isinstance(value, Histogram) else value
            for _, value, _ in samples
        ],
    ]


class _Outcome(msgspec.Struct, frozen=True):
    collector: str
    success: bool
    seconds: float
    samples: _Samples
    past: _Samples
    reason: str | None = None


class _Server(msgspec.Struct, frozen=True):
    name: str
    target: dict[str, Any]
    outcomes: list[_Outcome]


class _Reply(msgspec.Struct, frozen=True):
    """The JSON of a Reply. Unknown keys are ignored, because later versions may add some."""

    boot_id: str
    pid: int
    cpu_seconds: float
    rss_bytes: int
    version: str
    series: list[Annotated[list[str], Meta(min_length=1)]]
    servers: list[_Server]
    sent_at: float
    trouble: Trouble = msgspec.field(default_factory=Trouble)


class SnapshotsRequest(msgspec.Struct, frozen=True, rename={"begin": "from", "end": "to"}):
    """The request for a server's snapshots between two Unix times."""

    server: str
    begin: float
    end: float
    stacks: Any = False


def decode_reply(data: Any) -> Reply:
    """Decode the reply to ``collect``. Raise BadMessage if it is invalid."""
    reply = decoded(data, _Reply)
    series = [(metric, tuple(labels)) for metric, *labels in reply.series]
    return Reply(
        reply.boot_id,
        reply.pid,
        reply.cpu_seconds,
        reply.rss_bytes,
        reply.version,
        tuple(
            ServerReply(
                server.name,
                decode_target(server.target),
                tuple(_outcome(outcome, series) for outcome in server.outcomes),
            )
            for server in reply.servers
        ),
        reply.sent_at,
        reply.trouble,
    )


def _outcome(data: _Outcome, series: Sequence[_Series]) -> Outcome:
    return Outcome(
        data.collector,
        data.success,
        data.seconds,
        _decode_samples(data.samples, series),
        data.reason,
        _decode_samples(data.past, series),
    )


def _decode_samples(data: _Samples, series: Sequence[_Series]) -> tuple[Sample, ...]:
    numbers, values = data
    if len(numbers) != len(values):
        raise BadMessage("malformed samples: expected as many series indexes as values")
    return tuple(
        [
            Sample(
                metric, Histogram(tuple(value[1:]), value[0]) if isinstance(value, list) else value, labels
            )
            for (metric, labels), value in zip(select(series, numbers), values, strict=True)
        ]
    )


def encode_target(target: Target) -> dict[str, Any]:
    """Convert a target to values that JSON can represent. Strings that may exceed 4 KiB are truncated."""
    document = target.document() | {"version": list(target.version)}
    return {name: _cut(value) if isinstance(value, str) else value for name, value in document.items()}


def _cut(text: str) -> str:
    if text_bytes(text) <= _TEXT_BYTES or _json_bytes(text) - len('""') <= _TEXT_BYTES:
        return text
    return text[: _CUT_CHARACTERS - 1] + "…"


def decode_target(data: dict[str, Any]) -> Target:
    """Decode a target. Unknown keys are ignored; ``chosen`` is never set. Raise BadMessage if invalid."""
    return decoded(data | {"chosen": False}, Target)


def decoded(data: Any, kind: type[T]) -> T:
    """Convert a message or a part of it to a type. Raise BadMessage if it is invalid."""
    try:
        return convert_untrusted(data, kind)
    except ValueError as error:
        raise BadMessage(f"malformed message: {error}") from error


def select(items: Sequence[T], indexes: Sequence[object]) -> list[T]:
    """Return the items with these indexes. Raise BadMessage if one is not an index of ``items``."""
    count = len(items)
    found = [items[index] for index in indexes if isinstance(index, int) and 0 <= index < count]
    if len(found) != len(indexes):
        raise BadMessage(f"malformed message: an index is out of range: there are {count:,} items")
    return found
