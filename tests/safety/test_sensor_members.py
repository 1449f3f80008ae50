"""Test that members of the sensor's group can query it, but cannot kill it, block it or change anything."""

from __future__ import annotations

import json
import pwd
import socket
import struct
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from innoscope.daemon.protocol.messages import BadMessage
from innoscope.daemon.sensor.main import Sensor, SensorSettings
from safety.privileges import NOBODY
from safety.sensing import Sensing
from safety.stopwatch import Stopwatch
from safety.well import assert_well
from servers import Keeper, Server

if TYPE_CHECKING:
    from collections.abc import Iterator

GROUP = "games"
QUICK_S = 1.0
#: A script that opens many connections as a member of the group, sends the same bytes on each, prints ``go``
#: and continues until it is killed.
_MEMBER = """
import json, os, socket, struct, sys, time
path, uid, gid, kind = sys.argv[1:]
os.setgroups([int(gid)]); os.setgid(65534); os.setuid(int(uid))
def frame(body): return struct.pack("!I", len(body)) + body
sent = {
    "silent": b"", "slow": frame(b" " * 60000)[:1], "huge": struct.pack("!I", 0xffffffff),
    "half": frame(b"{}")[:5],
    "unread": frame(b'{"call":"collect"}'), "garbage": os.urandom(4096), "deep": frame(b"[" * 60000),
    "number": frame(b'{"call":"profiles","cursor":{"x":' + b"9" * 4000 + b"}}"),
    "control": frame(b'{"call":"set"}'),
}[kind]
held, reported = [], False
while True:
    wire = socket.socket(socket.AF_UNIX)
    wire.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    wire.settimeout(5)
    try:
        wire.connect(path)
        wire.sendall(sent)
    except OSError:
        pass
    held = [*held[-200:], wire]
    if len(held) > 40 and not reported:
        reported = True
        print("go", flush=True)
    time.sleep(0.002)
"""
KINDS = ("silent", "slow", "huge", "half", "unread", "garbage", "deep", "number", "control")


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server("mysql-5.6.24") as server:
        yield server


@pytest.fixture(scope="module")
def sensing(server: Server) -> Iterator[Sensing]:
    with Sensing("--group", GROUP, "--no-probes", only=[server]) as sensing:
        pid = sensing.pid
        yield sensing
        assert sensing.pid == pid
        assert sensing.process is not None
        assert sensing.process.poll() is None
        assert "Traceback" not in sensing.log, sensing.log[-3000:]
    assert_well(server)


@pytest.mark.parametrize("kind", KINDS)
def test_a_members_flood_delays_no_other_client(kind: str, sensing: Sensing) -> None:
    gid = pwd.getpwnam(GROUP).pw_gid
    command = [sys.executable, "-I", "-c", _MEMBER, str(sensing.path), str(NOBODY), str(gid), kind]
    with Keeper() as keeper, subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as member:
        keeper.watch(member.pid)
        try:
            assert member.stdout is not None
            assert member.stdout.readline() == "go\n"
            took = []
            for _ in range(10):
                stopwatch = Stopwatch(sensing.pid)
                sensing.client.collect()  # by a user other than the member
                took.append(stopwatch.seconds())
        finally:
            keeper.end(member)

    assert max(took) < QUICK_S, took


def test_requests_cannot_change_anything(sensing: Sensing, server: Server) -> None:
    """Check that calls other than the sensor's queries are refused as unknown."""
    for call in (
        "kill",
        "set",
        "attach",
        "detach",
        "write",
        "exec",
        "reload",
        "shutdown",
        "__class__",
        "close",
    ):
        request = json.dumps({"call": call, "pid": server.pid, "server": "x", "path": "/etc/shadow"}).encode()
        with socket.socket(socket.AF_UNIX) as wire:
            wire.connect(str(sensing.path))
            wire.sendall(struct.pack("!I", len(request)) + request)
            reply = b""
            while part := wire.recv(1 << 16):
                reply += part
        assert json.loads(reply[4:]) == {"error": f"unknown call {call!r}"}
    with pytest.raises(BadMessage, match="unknown call"):
        Sensor(SensorSettings()).handle({"call": "tick"})
