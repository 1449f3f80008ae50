"""Asks the sensor. All that the agent needs of it."""

from __future__ import annotations

import errno
import os
import socket
import struct
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from innoscope.common.errors import ExitCode, InnoscopeError
from innoscope.daemon.protocol import messages
from innoscope.daemon.protocol.profiles import decode_chunks, decode_looks

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from innoscope.daemon.protocol.messages import Reply
    from innoscope.sampling.profile_history import Chunk
    from innoscope.sampling.snapshot_history import Look, Seen
    from innoscope.target.model import Target

DEFAULT_SOCKET: Final = "/run/innoscope/sensor.sock"

#: Where the sensor's ``profiles`` go on, by server; an empty one begins with all there is.
Cursor = dict[str, int]


class SensorDown(InnoscopeError):
    """The sensor does not answer, or not as it should."""

    exit_code = ExitCode.SENSOR_DOWN


@dataclass(frozen=True, slots=True)
class ServerProfiles:
    """Chunks that are new since the cursor, the oldest first."""

    target: Target
    chunks: list[Chunk]


class SensorClient:
    """One connection a question: a sensor that was restarted is met without further ado.

    ``timeout`` is seconds for a whole question. Every method raises SensorDown, and nothing else.
    """

    def __init__(self, path: str = DEFAULT_SOCKET, timeout: float = 1.0) -> None:
        self.path = path
        self._timeout = timeout

    def hello(self) -> dict[str, Any]:
        """``version``, ``protocol``, ``pid``, ``boot_id`` and the names of the ``servers``."""
        answer = self._ask({"call": "hello"})
        if answer.get("protocol") != messages.VERSION:
            raise self._down(f"it speaks protocol {answer.get('protocol')}, we speak {messages.VERSION}")
        return answer

    def collect(self) -> Reply:
        """One run of all collectors on all servers."""
        with self._explaining():
            return messages.decode_reply(self._ask({"call": "collect"}))

    def profiles(self, cursor: Cursor) -> tuple[Cursor, dict[str, ServerProfiles]]:
        """``(new cursor, profiles by server)``: ask again until no server has a chunk."""
        with self._explaining():
            return _profiles(self._ask({"call": "profiles", "cursor": cursor}))

    def looks(
        self, server: str, begin: float, end: float, *, stacks: bool
    ) -> tuple[tuple[Look, ...], tuple[Seen, ...]]:
        """Looks at a server, by the sensor's name of it, between two Unix times; what was seen, if asked."""
        request = {"call": "looks", "server": server, "from": begin, "to": end, "stacks": stacks}
        with self._explaining():
            return decode_looks(self._ask(request))

    def probes(self) -> dict[str, list[dict[str, Any]]]:
        """What the probes of each server say of themselves, by the server's name."""
        with self._explaining():
            return _statuses(self._ask({"call": "probes"}))

    def _ask(self, request: Mapping[str, Any]) -> dict[str, Any]:
        deadline = time.monotonic() + self._timeout
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as wire:
                # a timeout of Python's own would not wait for a place in the queue
                wire.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _timeval(self._timeout))
                wire.connect(self.path)
                with suppress(BrokenPipeError):  # refused before we asked: the answer says why
                    messages.send(wire, request, messages.REQUEST_BYTES, deadline)
                answer = messages.receive(wire, messages.REPLY_BYTES, deadline)
        except (messages.TooSlow, TimeoutError, BlockingIOError) as error:
            raise self._down(f"no answer within {self._timeout:g} s") from error
        except OSError as error:
            raise self._unreachable(error) from error
        except messages.BadMessage as error:
            raise self._down(error.what) from error
        if not isinstance(answer, dict) or not isinstance(answer.get("ok"), dict):
            words = answer.get("error") if isinstance(answer, dict) else None
            raise self._down(str(words or "an answer that nobody understands")[:300])
        return dict(answer["ok"])

    @contextmanager
    def _explaining(self) -> Iterator[None]:
        """An answer that is not what it should be is no answer."""
        try:
            yield
        except messages.BadMessage as error:
            raise self._down(error.what) from error

    def _unreachable(self, error: OSError) -> SensorDown:
        if error.errno in (errno.EACCES, errno.EPERM):
            return SensorDown(
                f"no right to ask the sensor at {self.path}",
                remedy=f"as root, or as a member of the socket's group: ls -l {self.path}",
            )
        return self._down(error.strerror or str(error))

    def _down(self, words: str) -> SensorDown:
        other = "" if self.path == DEFAULT_SOCKET else f" --sensor-socket {self.path}"
        start = "sudo innoscope sensor" if os.geteuid() else "innoscope sensor"
        return SensorDown(
            f"the sensor at {self.path} is of no help: {words}", remedy=f"start it: {start}{other}"
        )


def _timeval(seconds: float) -> bytes:
    """The kernel's struct timeval."""
    return struct.pack("@ll", int(seconds), int(seconds % 1 * 1e6))


def _profiles(answer: Any) -> tuple[Cursor, dict[str, ServerProfiles]]:
    cursor, found = {}, {}
    for name, body in messages.part(answer, "servers", dict).items():
        target = messages.decode_target(messages.part(body, "target", dict))
        cursor[name] = messages.part(body, "cursor", int)
        found[name] = ServerProfiles(target, decode_chunks(body))
    return cursor, found


def _statuses(answer: Any) -> dict[str, list[dict[str, Any]]]:
    servers = messages.part(answer, "servers", dict)
    return {
        name: [messages.expect(row, dict) for row in messages.expect(rows, list)]
        for name, rows in servers.items()
    }
