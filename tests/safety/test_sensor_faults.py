"""Test that clients cannot block the sensor or query it without permission, and that its exit is harmless."""

from __future__ import annotations

import json
import pwd
import random
import socket
import stat
import struct
import subprocess
import sys
import threading
import time
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING

import pytest

from innoscope.daemon.protocol.client import SensorDown
from innoscope.daemon.protocol.messages import VERSION
from innoscope.daemon.sensor.server import MAX_CLIENTS
from innoscope.metrics.collectors.errors import CollectorFailed
from innoscope.metrics.collectors.probes import ProbesCollector
from innoscope.probes.calibration import known_cost
from innoscope.target.discover import find_one
from safety.command import assert_one_clear_error, innoscope
from safety.leftovers import orphans
from safety.privileges import NOBODY, without_bpf
from safety.sensing import Sensing, of_pid, outcome
from safety.stopwatch import Stopwatch
from safety.well import assert_well, statuses
from scale import count, few
from servers import Server
from waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from innoscope.probes.attachment import Attachment
    from innoscope.probes.calibration import HitCost

QUICK_S = 1.0
KILLS = count(quick=3, full=20)
#: Number of times that a sensor is ended. An end takes the sensor's own time and the time that it waits for a
#: CPU, so the quickest one shows the sensor's time.
ENDS = 3
SEED = 20261121
#: A script that sends a request as another user and prints the reply.
_ASK = """
import json, os, socket, struct, sys
path, uid, *groups = sys.argv[1:]
os.setgroups([int(group) for group in groups]); os.setgid(65534); os.setuid(int(uid))
wire = socket.socket(socket.AF_UNIX)
try:
    wire.connect(path)
    body = json.dumps({"call": "hello"}).encode()
    try:
        wire.sendall(struct.pack("!I", len(body)) + body)
    except BrokenPipeError:
        pass  # refused before the request
    (length,) = struct.unpack("!I", wire.recv(4, socket.MSG_WAITALL))
    print(wire.recv(length, socket.MSG_WAITALL).decode())
except OSError as error:
    print(type(error).__name__)
"""


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server("mysql-5.6.24") as server:
        yield server


@pytest.fixture(scope="module")
def sensing(server: Server) -> Iterator[Sensing]:
    with Sensing(only=[server]) as sensing:
        yield sensing


def connect(sensing: Sensing) -> socket.socket:
    wire = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    wire.connect(str(sensing.path))  # no timeout is set yet, so connect waits until the queue has room
    wire.settimeout(20)
    return wire


def is_closed(wire: socket.socket) -> bool:
    """Return whether the sensor closes the connection, or resets it, without a reply."""
    try:
        return wire.recv(1) == b""
    except ConnectionResetError:
        return True


def reply_time(sensing: Sensing) -> float:
    """Query the sensor. Return the seconds until its reply, except those spent waiting for a CPU."""
    stopwatch = Stopwatch(sensing.pid)
    sensing.client.collect()
    return stopwatch.seconds()


def test_the_sensor_replies_to_root_and_its_socket_is_not_public(sensing: Sensing) -> None:
    assert reply_time(sensing) < QUICK_S
    assert stat.S_IMODE(sensing.path.stat().st_mode) == 0o660


def test_silent_clients_delay_no_other_client(sensing: Sensing) -> None:
    with ExitStack() as stack:
        for _ in range(2 * MAX_CLIENTS):
            stack.enter_context(closing(connect(sensing)))
        assert reply_time(sensing) < QUICK_S


def test_a_silent_client_is_disconnected(sensing: Sensing) -> None:
    with closing(connect(sensing)) as wire:
        assert is_closed(wire)


@pytest.mark.parametrize(
    "sent",
    few(
        [struct.pack("!I", 100) + b'{"call"', b"\0\0", struct.pack("!I", 1 << 31), b"GET / HTTP/1.0\r\n\r\n"],
        struct.pack("!I", 100) + b'{"call"',
        struct.pack("!I", 1 << 31),
        b"GET / HTTP/1.0\r\n\r\n",
        reason="half a header waits like half a frame",
    ),
)
def test_an_incomplete_or_invalid_frame_is_not_answered(sensing: Sensing, sent: bytes) -> None:
    with closing(connect(sensing)) as wire:
        wire.sendall(sent)
        assert reply_time(sensing) < QUICK_S
        assert is_closed(wire), "the sensor replied"


def _reply(sensing: Sensing, request: bytes) -> dict[str, object]:
    with closing(connect(sensing)) as wire:
        wire.sendall(struct.pack("!I", len(request)) + request)
        data = b""
        while part := wire.recv(1 << 20):
            data += part
    (length,) = struct.unpack("!I", data[:4])
    assert length == len(data) - 4
    reply: dict[str, object] = json.loads(data[4:])
    return reply


@pytest.mark.parametrize(
    "request_",
    [b"[]", b"1", b"{}", b'{"call":5}', b'{"call":"kill"}', b'{"call":"profiles","cursor":[1]}',
     b'{"call":"profiles","cursor":{"x":"y"}}', b'{"call":"' + b"x" * 5_000 + b'"}'],
)  # fmt: skip
def test_an_invalid_request_gets_an_error(sensing: Sensing, request_: bytes) -> None:
    reply = _reply(sensing, request_)
    assert set(reply) <= {"error", "ok"}
    if b'"y"' not in request_:  # a cursor for an unknown server is ignored
        assert "error" in reply
    assert "Traceback" not in str(reply)


def test_concurrent_clients_are_all_answered(sensing: Sensing) -> None:
    took: list[float] = []

    def ask() -> None:
        took.extend(reply_time(sensing) for _ in range(10))

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(took) == 80
    assert max(took) < 2 * QUICK_S


def _ask_as(path: Path, uid: int, *groups: int) -> str:
    done = subprocess.run(
        [sys.executable, "-I", "-c", _ASK, str(path), str(uid), *map(str, groups)],
        capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip
    return done.stdout.strip() or done.stderr


def test_another_user_cannot_connect(sensing: Sensing) -> None:
    assert _ask_as(sensing.path, NOBODY) == "PermissionError"


def test_another_user_is_refused_even_if_the_socket_is_public(sensing: Sensing) -> None:
    sensing.path.chmod(0o666)
    try:
        reply = _ask_as(sensing.path, NOBODY)
    finally:
        sensing.path.chmod(0o660)

    assert json.loads(reply)["error"] == f"access denied: user {NOBODY} is not in the sensor's group"


def test_members_of_the_group_may_query_the_sensor(server: Server) -> None:
    """Query as another user with the sensor's group as a supplementary group, as the agent does."""
    with Sensing("--group", "games", only=[server]) as sensing:
        games = pwd.getpwnam("games").pw_gid
        assert sensing.path.stat().st_gid == games
        member, stranger = _ask_as(sensing.path, NOBODY, 1, games, 2), _ask_as(sensing.path, NOBODY, 1, 2)

    assert json.loads(member)["ok"]["protocol"] == VERSION
    assert stranger == "PermissionError"


def test_an_unknown_group_is_reported(tmp_path: Path) -> None:
    result = innoscope("sensor", "--sensor-socket", tmp_path / "s", "--group", "no-such-group")

    assert_one_clear_error(result, 1, "unknown group no-such-group")


def test_a_second_sensor_on_a_socket_is_refused(sensing: Sensing) -> None:
    result = innoscope("sensor", "--sensor-socket", sensing.path)

    assert_one_clear_error(result, 1, "another sensor listens on")
    assert reply_time(sensing) < QUICK_S


def test_a_file_that_is_not_a_socket_is_not_replaced(tmp_path: Path) -> None:
    path = tmp_path / "precious"
    path.write_text("precious")
    result = innoscope("sensor", "--sensor-socket", path)

    assert_one_clear_error(result, 1, "is not a socket")
    assert path.read_text() == "precious"


def test_sigterm_ends_the_sensor_at_once_and_removes_its_socket(server: Server) -> None:
    took = []
    with Sensing(only=[server]) as sensing:
        for number in range(ENDS):
            if number:
                sensing.start()
            assert of_pid(sensing.client.collect(), server.pid) is not None
            began = time.monotonic()
            code = sensing.terminate()
            took.append(time.monotonic() - began)

            assert (code, sensing.path.exists()) == (0, False)
            assert "Traceback" not in sensing.log
            with pytest.raises(SensorDown, match="No such file") as caught:
                sensing.client.hello()
            assert caught.value.remedy is not None
            assert "innoscope sensor --sensor-socket" in caught.value.remedy
    assert min(took) < QUICK_S, took
    assert not orphans()


def test_a_killed_sensor_does_not_harm_the_server_and_can_be_restarted(server: Server) -> None:
    draw = random.Random(SEED)  # noqa: S311
    with Sensing("--interval", 0.1, only=[server]) as sensing:
        for _ in range(KILLS):
            time.sleep(draw.random() * 0.5)
            sensing.kill()
            assert sensing.path.exists(), "a stale socket, left by kill -9"
            assert_well(server)
            sensing.start()
        until(lambda: _has_waits(sensing, server))
    assert not orphans()


def _has_waits(sensing: Sensing, server: Server) -> bool:
    reply = of_pid(sensing.client.collect(), server.pid)
    return reply is not None and outcome(reply, "waits").success


def test_without_bpf_the_sensor_reads_stacks_by_procfs_and_stops_no_thread(server: Server) -> None:
    with Sensing("--interval", 0.1, only=[server], under=without_bpf()) as sensing:
        until(lambda: not _starting(sensing, server))
        traced = {tracer for _ in range(200) for _, _, tracer in statuses(server.pid)}
        sensing.until(server, lambda one: outcome(one, "waits").success and outcome(one, "process").success)

    assert traced == {0}


def test_a_server_that_ends_while_probes_are_prepared_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that the collector immediately reports that the server has exited, instead of timing out."""
    with Server("mysql-5.6.24") as server:

        def known_late(attachment: Attachment) -> HitCost:
            server.kill()
            return known_cost(attachment)

        monkeypatch.setattr("innoscope.metrics.collectors.probes.known_cost", known_late)
        collector = ProbesCollector(find_one(server.pid), attach_soon=True)
        until(lambda: not _why(collector).startswith("timeout"))

    assert "has exited" in _why(collector)
    assert not orphans()


def _why(collector: ProbesCollector) -> str:
    with pytest.raises(CollectorFailed) as caught:
        collector.start_once()
    return f"{caught.value.reason}: {caught.value.words}"


def _starting(sensing: Sensing, server: Server) -> bool:
    reply = of_pid(sensing.client.collect(), server.pid)
    return reply is None or "first snapshot" in str(outcome(reply, "waits").reason)
