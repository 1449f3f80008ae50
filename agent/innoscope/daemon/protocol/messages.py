"""Encode and decode the messages on the sensor's socket.

A connection carries one request and one reply. Each consists of a 4-byte length and a JSON body. Neither side
trusts the other: the length is checked before any byte of the body is read, and all values are validated.
"""

from __future__ import annotations

import json
import struct
import time
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from innoscope.common.errors import BadFile
from innoscope.common.samples import Histogram, Outcome, Sample
from innoscope.common.supervision import Trouble
from innoscope.target.model import Target

if TYPE_CHECKING:
    import socket
    from collections.abc import Iterable, Sequence


#: Protocol version: increment it if older clients can no longer decode the replies.
VERSION: Final = 3
REQUEST_BYTES: Final = 64 << 10
REPLY_BYTES: Final = 16 << 20
_LENGTH: Final = struct.Struct("!I")
_PIECE: Final = 1 << 18
#: Maximum number of histogram buckets. Bucket bounds are powers of two in nanoseconds, so 64 of them cover
#: more than 500 years.
_BUCKETS: Final = 64
_PLAIN: Final = frozenset({int, float})
#: A metric and the values of its labels.
_Series: TypeAlias = tuple[str, tuple[str, ...]]
_Numbers: TypeAlias = dict[_Series, int]


class BadMessage(BadFile):
    """A message that is too long, truncated or malformed."""


class TooSlow(Exception):
    """The peer did not send or receive a whole message before the deadline."""


@dataclass(frozen=True, slots=True)
class ServerReply:
    """The sensor's report on one server. Exited servers are reported for an hour, with mysqld_up 0."""

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


def encode_servers(servers: Iterable[ServerReply]) -> dict[str, Any]:
    """Return ``series`` and ``servers``. A series that several servers share is listed only once."""
    numbers: _Numbers = {}
    encoded = [
        {
            "name": server.name,
            "target": encode_target(server.target),
            "outcomes": [_encode_outcome(outcome, numbers) for outcome in server.outcomes],
        }
        for server in servers
    ]
    return {"series": [[metric, *labels] for metric, labels in numbers], "servers": encoded}


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


def _servers(data: Any) -> tuple[ServerReply, ...]:
    series = [_series(item) for item in part(data, "series", list)]
    return tuple(
        ServerReply(
            part(server, "name", str),
            decode_target(part(server, "target", dict)),
            tuple(_outcome(item, series) for item in part(server, "outcomes", list)),
        )
        for server in part(data, "servers", list)
    )


def _series(data: Any) -> _Series:
    if not isinstance(data, list) or {*map(type, data)} != {str}:
        raise BadMessage("malformed series: expected [metric, label, …]")
    metric, *labels = data
    return metric, tuple(labels)


def _outcome(data: Any, series: Sequence[_Series]) -> Outcome:
    reason = expect(data, dict).get("reason")
    return Outcome(
        part(data, "collector", str),
        part(data, "success", bool),
        part(data, "seconds", float),
        _samples(part(data, "samples", list), series),
        None if reason is None else expect(reason, str),
        _samples(part(data, "past", list), series),
    )


def _samples(data: Sequence[Any], series: Sequence[_Series]) -> tuple[Sample, ...]:
    """Decode samples. All indices are checked in one pass: 100 servers have tens of thousands of samples."""
    if len(data) != 2 or len(expect(data[0], list)) != len(expect(data[1], list)):
        raise BadMessage("malformed samples: expected as many series indices as values")
    numbers, values = data
    if numbers and ({*map(type, numbers)} != {int} or min(numbers) < 0 or max(numbers) >= len(series)):
        raise BadMessage("malformed samples: series index out of range")
    return tuple(
        [
            Sample(metric, value if type(value) in _PLAIN else _histogram(value), labels)
            for (metric, labels), value in zip([series[number] for number in numbers], values, strict=True)
        ]
    )


def _histogram(data: Any) -> Histogram:
    expect(data, list)
    if not 1 <= len(data) <= _BUCKETS + 1 or not all(type(item) is int and item >= 0 for item in data):
        raise BadMessage("malformed histogram: expected a list of counts")
    return Histogram(tuple(data[1:]), data[0])


def encode_target(target: Target) -> dict[str, Any]:
    """Convert a target to values that JSON can represent."""
    return target.document() | {"version": list(target.version)}


#: The types that each field of a target may have; fields that are not listed must be strings.
_TARGET: Final[dict[str, tuple[type, ...]]] = {
    "pid": (int,), "start_time": (int,), "threads": (int,), "port": (int, type(None)),
    "version": (list,), "deleted": (bool,),
    **dict.fromkeys(("build_id", "socket", "datadir", "container"), (str, type(None))),
}  # fmt: skip


def decode_target(data: Any) -> Target:
    """Decode a target. Unknown keys are ignored; ``chosen`` is never set. Raise BadMessage if invalid."""
    names = [field.name for field in fields(Target) if field.name != "chosen"]
    values = {name: expect(data, dict).get(name) for name in names}
    for name, value in values.items():
        if type(value) not in _TARGET.get(name, (str,)):
            raise BadMessage(f"malformed target: invalid {name}: {value!r:.60}")
    values["version"] = tuple(expect(number, int) for number in values["version"])
    return Target(**values)


def decode_reply(data: Any) -> Reply:
    """Decode the reply to ``collect``. Raise BadMessage if it is invalid."""
    return Reply(
        boot_id=part(data, "boot_id", str),
        pid=part(data, "pid", int),
        cpu_seconds=part(data, "cpu_seconds", float),
        rss_bytes=part(data, "rss_bytes", int),
        version=part(data, "version", str),
        servers=_servers(data),
        sent_at=part(data, "sent_at", float),
        trouble=_trouble(data),
    )


def _trouble(data: Any) -> Trouble:
    """Decode the counts of failures in the sensor. Counts that the sensor does not send are 0."""
    trouble = expect(data.get("trouble", {}), dict)
    return Trouble(**{field.name: expect(trouble.get(field.name, 0), int) for field in fields(Trouble)})


def part(data: Any, name: str, kind: type) -> Any:
    """Return the value of a key. Raise BadMessage if it is missing or does not have the type ``kind``."""
    if name not in expect(data, dict):
        raise BadMessage(f"{name} is missing")
    return expect(data[name], kind)


def expect(value: Any, kind: type) -> Any:
    """Return the value if its type is ``kind`` (an int is also a valid float). Otherwise raise BadMessage."""
    if kind is float and type(value) is int:
        return float(value)
    if type(value) is not kind:
        raise BadMessage(f"expected {kind.__name__}, got {value!r:.60}")
    return value
