"""Serve a synthetic hour of stacks on a sensor's socket, so that no test has to wait for a real one."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

from innoscope import __version__
from innoscope.common.supervision import Supervisor
from innoscope.daemon.protocol import messages
from innoscope.daemon.protocol.stack_encoding import encode_chunks
from innoscope.daemon.sensor.server import SocketServer
from innoscope.sampling.model import Frame, Trust
from innoscope.sampling.profile_history import (
    CHUNK_S,
    SPAN_S,
    Chunk,
    ClassifiedStack,
    ProfileHistory,
)
from innoscope.target.discover import find_one

if TYPE_CHECKING:
    from pathlib import Path

    from servers import Server

#: This string is part of every function name. Tests check that responses do not disclose it.
MARK = "marked_function"
_DEPTH = 30
#: Number of distinct stacks: almost as many as fit into MAX_BYTES. With more, each chunk would exceed the
#: limit, and building the hour would take ten times as long.
_STACKS = 1_400


class HourSensor:
    """Context manager: a sensor that only root can query."""

    def __init__(self, path: Path, server: Server) -> None:
        self._path = path
        self._target = messages.encode_target(find_one(server.pid))
        self._profiles = ProfileHistory()
        counts = {_stack(number): 1 + number % 9 for number in range(_STACKS)}
        now = time.time()
        for number in range(int(SPAN_S / CHUNK_S)):
            end = now - SPAN_S + (number + 1) * CHUNK_S
            self._profiles.add_chunk(Chunk(end - CHUNK_S, end, 10, 80.0, counts))

    def __enter__(self) -> HourSensor:
        self._socket = SocketServer(str(self._path), self._answer, Supervisor())
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def _answer(self, request: dict[str, Any]) -> dict[str, Any]:
        identity = {"boot_id": "hour", "pid": os.getpid(), "version": __version__}
        if request["call"] == "profiles":
            cursor, chunks = self._profiles.since(request["cursor"].get("hour", 0))
            reply = {"target": self._target, "cursor": cursor, **encode_chunks(chunks)}
            return {"servers": {"hour": reply}, "more": bool(chunks)}
        if request["call"] == "collect":
            reply = messages.encode_servers(())
            return identity | {"cpu_seconds": 0.0, "rss_bytes": 0, "sent_at": time.time(), **reply}
        return identity | {"protocol": messages.VERSION, "servers": {}}


def _stack(number: int) -> ClassifiedStack:
    """Build a stack. Half of the frames are shared by all stacks."""
    shared = [Frame(f"{MARK}_{depth}(unsigned long)", "mysqld", 0) for depth in range(_DEPTH // 2)]
    own = [Frame(f"{MARK}_{number}_{depth}(char const*)", "mysqld", 0) for depth in range(_DEPTH // 2)]
    return ClassifiedStack.of("row_lock", Trust.EXACT, tuple(own + shared))
