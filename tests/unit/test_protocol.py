"""The sensor's frames are decoded as they were encoded, and all malformed input is rejected."""

from __future__ import annotations

import json
import math
import socket
import struct
import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import pytest

from innoscope.common.samples import Histogram, Outcome, Sample
from innoscope.daemon.protocol import messages
from innoscope.daemon.protocol.messages import BadMessage, TooSlow
from innoscope.daemon.protocol.stack_encoding import (
    decode_chunks,
    decode_snapshots,
    encode_chunks,
    encode_snapshots,
)
from innoscope.sampling.model import Trust
from innoscope.sampling.profile_history import Chunk, ClassifiedStack
from innoscope.sampling.snapshot_history import ObservedStack, SnapshotSummary
from unit.snapshots import IDLE, ROW_LOCK, target

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

LIMIT = 1_000


@pytest.fixture
def sockets() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


def soon(seconds: float = 60.0) -> float:
    return time.monotonic() + seconds


def through_json(value: Any) -> Any:
    return json.loads(json.dumps(value))


def test_a_message_is_received_as_it_was_sent(sockets: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = sockets
    messages.send(ours, {"call": "collect", "x": [1, None, "é"]}, LIMIT, soon())

    assert messages.receive(theirs, LIMIT, soon()) == {"call": "collect", "x": [1, None, "é"]}


def test_a_large_message_is_received_in_pieces(sockets: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = sockets
    message = ["x" * 1000] * 3000
    writer = threading.Thread(target=messages.send, args=(ours, message, 4 << 20, soon()))
    writer.start()

    assert messages.receive(theirs, 4 << 20, soon()) == message
    writer.join()


def test_oversized_messages_are_neither_sent_nor_read(sockets: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = sockets
    with pytest.raises(BadMessage, match=r"the limit is 1,000"):
        messages.send(ours, "x" * LIMIT, LIMIT, soon())

    ours.sendall(struct.pack("!I", LIMIT + 1))
    with pytest.raises(BadMessage, match=r"1,001 bytes: the limit"):
        messages.receive(theirs, LIMIT, soon())


@pytest.mark.parametrize("body", [b"", b"{", b"\xff\xfe", b"[" * 900, b"1" * 900 + b"e", b'{"a":}', b"[]]"])
def test_malformed_json_is_refused(sockets: tuple[socket.socket, socket.socket], body: bytes) -> None:
    ours, theirs = sockets
    ours.sendall(struct.pack("!I", len(body)) + body)

    with pytest.raises(BadMessage):
        messages.receive(theirs, LIMIT, soon())


def test_deeply_nested_json_is_refused(sockets: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = sockets
    body = b"[" * 60_000
    writer = threading.Thread(target=ours.sendall, args=(struct.pack("!I", len(body)) + body,))
    writer.start()
    with pytest.raises(BadMessage):
        messages.receive(theirs, messages.REQUEST_BYTES, soon())
    writer.join()


@pytest.mark.parametrize("sent", [b"", b"\0\0", struct.pack("!I", 20), struct.pack("!I", 20) + b"[1,"])
def test_a_truncated_frame_is_refused(sockets: tuple[socket.socket, socket.socket], sent: bytes) -> None:
    ours, theirs = sockets
    ours.sendall(sent)
    ours.close()

    with pytest.raises(BadMessage, match=r"truncated message"):
        messages.receive(theirs, LIMIT, soon())


def test_the_deadline_is_for_the_whole_message(sockets: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = sockets
    ended = threading.Event()

    def drip() -> None:
        ours.sendall(struct.pack("!I", LIMIT))
        while not ended.wait(0.01):
            ours.sendall(b" ")

    dripping = threading.Thread(target=drip)
    dripping.start()
    with pytest.raises(TooSlow):
        messages.receive(theirs, LIMIT, soon(0.2))
    assert dripping.is_alive(), "bytes arrived until the end, and did not extend the deadline"
    ended.set()
    dripping.join()


def test_sending_to_a_stuck_reader_times_out(sockets: tuple[socket.socket, socket.socket]) -> None:
    ours, _ = sockets
    with pytest.raises(TooSlow):
        messages.send(ours, "x" * (8 << 20), messages.REPLY_BYTES, soon(0.1))


OUTCOMES = (
    Outcome("process", True, 0.002, (Sample("mysqld_up", 1), Sample("redo_full_seconds", math.inf))),
    Outcome(
        "probes", False, 1.5,
        (
            Sample("fsync_seconds", Histogram((0, 2, 1), 77), ("redo",)),
            Sample("latch_wait_seconds", Histogram((), 0)),
        ),
        "rights: not root",
    ),
    Outcome("waits", True, 0.0, (Sample("threads", 3, ("idle",)), Sample("thread_seconds", 1.25, ("idle",)))),
    Outcome("memory", True, 0.0, (Sample("spin_waits", 9),), past=(Sample("spin_waits", 4),)),
)  # fmt: skip


def test_targets_survive_encoding() -> None:
    for one in (
        target(),
        target(version=(), port=None, socket=None, build_id=None, datadir=None, container="mnt"),
    ):
        assert messages.decode_target(through_json(messages.encode_target(one))) == one


def reply() -> dict[str, Any]:
    servers = [messages.ServerReply(name, target(), OUTCOMES) for name in ("3306", "3307")]
    made: dict[str, Any] = through_json(
        {
            "boot_id": "b", "pid": 7, "cpu_seconds": 1, "rss_bytes": 4096, "version": "0.1.0",
            **messages.encode_servers(servers), "sent_at": 1.5, "something": "of a newer version",
        }
    )  # fmt: skip
    return made


def test_replies_survive_encoding() -> None:
    decoded = messages.decode_reply(reply())

    assert (decoded.pid, decoded.cpu_seconds, decoded.servers[0].name) == (7, 1.0, "3306")
    assert decoded.servers[0].target == target()
    assert [server.outcomes for server in decoded.servers] == [OUTCOMES, OUTCOMES]


def test_each_series_is_encoded_once() -> None:
    series = [(one.metric, *one.labels) for outcome in OUTCOMES for one in outcome.samples]

    assert [tuple(one) for one in reply()["series"]] == series


#: Invalid values of ``samples``. A valid value has a list of indexes into ``series`` and an equally long list
#: of values.
_BAD_SAMPLES: Final[tuple[Any, ...]] = (
    [], [[]], [1, 2], [[], [], []], [[0], []], [[], [1]], [{}, {}],
    [["0"], [1]], [[True], [1]], [[0.0], [1]], [[None], [1]], [[-1], [1]], [[99], [1]], [[0, 10**30], [1, 1]],
    [[0], [None]], [[0], [True]], [[0], ["1"]], [[0], [{}]], [[0], [[]]], [[0], [[1, -1]]], [[0], [[1] * 99]],
    [[0], [[1, 1.5]]],
)  # fmt: skip


def _malformed_replies() -> Iterator[Any]:
    """Yield replies, each with one invalid or missing part."""
    for name in ("boot_id", "pid", "cpu_seconds", "rss_bytes", "version", "series", "servers", "sent_at"):
        less = reply()
        del less[name]
        yield less
        yield reply() | {name: {"no": "such"}}
    yield from (None, [], "x", 1)
    for series in ([], "x", [1], ["x", 1], ["x", None], [["x"]], None):
        yield reply() | {"series": [series, *reply()["series"][1:]]}
    changes: list[tuple[tuple[Any, ...], Any]] = [
        (("target", "pid"), "1"),
        (("target", "pid"), True),
        (("target", "version"), ["5"]),
        (("target", "socket"), 5),
        (("target", "flavour"), None),
        (("outcomes", 0, "success"), 1),
        (("outcomes", 0, "seconds"), "1"),
        (("outcomes", 0, "reason"), 7),
        (("outcomes", 0, "past"), None),
        *((("outcomes", 0, "samples"), value) for value in _BAD_SAMPLES),
        (("outcomes",), [1]),
        (("target",), {}),
    ]
    for path, value in changes:
        malformed = reply()
        place = malformed["servers"][0]
        for step in path[:-1]:
            place = place[step]
        place[path[-1]] = value
        yield malformed


@pytest.mark.parametrize("data", list(_malformed_replies()))
def test_a_malformed_reply_is_one_error(data: Any) -> None:
    with pytest.raises(BadMessage):
        messages.decode_reply(data)


def chunk() -> Chunk:
    counts = {
        ClassifiedStack.of("idle", Trust.EXACT, IDLE): 1_000,
        ClassifiedStack.of("row_lock", Trust.EXACT, ROW_LOCK): 3,
        ClassifiedStack.of("row_lock", Trust.TORN, ROW_LOCK): 1,
    }
    return Chunk(100.0, 109.0, 10, 48.5, counts, 2)


def test_profiles_survive_encoding() -> None:
    chunks = [
        chunk(),
        replace(chunk(), start=110.0, counts={ClassifiedStack.of("idle", Trust.EXACT, IDLE): 7}),
    ]
    encoded = through_json(encode_chunks(chunks))
    decoded = decode_chunks(encoded)

    assert decoded == chunks
    assert [stack.frames for stack in decoded[0].counts] == [IDLE, ROW_LOCK, ROW_LOCK]
    assert len(encoded["stacks"]) == 3
    assert len(encoded["frames"]) == len(set(IDLE) | set(ROW_LOCK))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("frames", [[1, 2]]), ("frames", [[1, "m", 0, False, False]]), ("frames", 5),
        ("stacks", [["idle"]]), ("stacks", [["idle", "sure", 0]]), ("stacks", [["idle", "exact", 99]]),
        ("stacks", [["idle", "exact", -1]]), ("stacks", [["idle", "exact", "0"]]),
        ("chunks", [{}]), ("chunks", [{"counts": [[0]]}]),
    ],
)  # fmt: skip
def test_malformed_profiles_are_one_error(name: str, value: Any) -> None:
    encoded = through_json(encode_chunks([chunk()])) | {name: value}
    with pytest.raises(BadMessage):
        decode_chunks(encoded)


@pytest.mark.parametrize(
    "change",
    [
        {"counts": [[0, 1 << 32]]},
        {"counts": [[0, 1 << 31], [1, 1 << 31]]},
        {"counts": [[0, -1]]},
        {"snapshots": -1},
        {"dropped": 1 << 40},
        {"start": float("nan")},
        {"end": float("inf")},
        {"snapshot_ms": 10**400},
    ],
    ids=str,
)
def test_numbers_that_cannot_be_stored_are_refused(change: dict[str, Any]) -> None:
    encoded = through_json(encode_chunks([chunk()]))
    encoded["chunks"][0] |= change
    with pytest.raises(BadMessage):
        decode_chunks(encoded)


@pytest.mark.parametrize(
    "change",
    [
        lambda data: data["snapshots"][0].__setitem__(0, float("nan")),
        lambda data: data["snapshots"][0][1][0].__setitem__(2, -1),
        lambda data: data["snapshots"][0].__setitem__(2, [1 << 31]),
        lambda data: data["seen"][0].__setitem__(2, 1 << 32),
        lambda data: data["seen"][0].__setitem__(3, [-1]),
    ],
)
def test_numbers_of_snapshots_that_cannot_be_stored_are_refused(change: Callable[[Any], None]) -> None:
    summary = SnapshotSummary(100.0, {("client", "row_lock"): 2}, (6,))
    encoded = through_json(encode_snapshots([summary], [ObservedStack("client", "idle", ("a",), 2, (4,))]))
    decode_snapshots(encoded)
    change(encoded)
    with pytest.raises(BadMessage):
        decode_snapshots(encoded)
