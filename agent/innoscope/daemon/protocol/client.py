"""Client of the sensor's socket, used by the agent and by commands."""

from __future__ import annotations

import errno
import os
import socket
import struct
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

import msgspec

from innoscope.common import slowness
from innoscope.common.errors import ExitCode, InnoscopeError
from innoscope.daemon.protocol import messages
from innoscope.daemon.protocol.sample_encoding import decode_samples
from innoscope.daemon.protocol.stack_encoding import decode_chunks, decode_snapshots

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from innoscope.daemon.protocol.messages import Reply
    from innoscope.sampling.profile_history import Chunk
    from innoscope.sampling.sessions.model import Batch
    from innoscope.sampling.snapshot_history import ObservedStack, SnapshotSummary
    from innoscope.target.model import Target

DEFAULT_SOCKET: Final = "/run/innoscope/sensor.sock"

#: Position in the sensor's profiles or samples, by server. An empty cursor starts with the oldest entry.
Cursor = dict[str, int]
#: Samples whose time differs from the current time by more than this many seconds are rejected. The limit is
#: high because the clock may have been set.
_SAMPLES_S: Final = 86_400.0


T = TypeVar("T")


class SensorDown(InnoscopeError):
    """The sensor does not reply, or it sends an error or a malformed reply."""

    exit_code = ExitCode.SENSOR_DOWN


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """A reply with the profiles or samples of each server that follow a cursor.

    ``more`` is whether there were others that did not fit into the reply: they follow ``cursor``.
    """

    cursor: Cursor
    servers: dict[str, T]
    more: bool


@dataclass(frozen=True, slots=True)
class ServerProfiles:
    """One server's chunks after the cursor, oldest first."""

    target: Target
    chunks: list[Chunk]


@dataclass(frozen=True, slots=True)
class ServerSamples:
    """One server's samples after the cursor."""

    target: Target
    batch: Batch


class _Page(msgspec.Struct, frozen=True):
    servers: dict[str, dict[str, Any]]
    more: bool = False  # older sensors do not send it; the next poll then fetches the rest


class _Part(msgspec.Struct, frozen=True):
    """One server's part of a reply, without its profiles or samples."""

    target: dict[str, Any]
    cursor: int


class _Statuses(msgspec.Struct, frozen=True):
    servers: dict[str, list[dict[str, Any]]]


class SensorClient:
    """A client that opens one connection per request, so that sensor restarts need no special handling.

    ``timeout`` limits a whole request, in seconds (more on a slow host). The methods raise SensorDown on
    every failure.
    """

    def __init__(self, path: str = DEFAULT_SOCKET, timeout: float = 1.0) -> None:
        self.path = path
        self._timeout = slowness.scaled(timeout)

    def hello(self) -> dict[str, Any]:
        """Return ``version``, ``protocol``, ``pid``, ``boot_id`` and the names of the ``servers``."""
        reply = self._call({"call": "hello"})
        if reply.get("protocol") != messages.VERSION:
            raise self._down(
                f"it uses protocol version {reply.get('protocol')}, but this is version {messages.VERSION}"
            )
        return reply

    def collect(self, timeout: float | None = None) -> Reply:
        """Run all collectors on all servers once, and return their results.

        ``timeout`` replaces the client's, in seconds; it is not extended on a slow host.
        """
        with self._bad_message_as_down():
            return messages.decode_reply(self._call({"call": "collect"}, timeout))

    def profiles(self, cursor: Cursor) -> Page[ServerProfiles]:
        """Return the profiles after the cursor by server.

        Call again with the new cursor if there are more.
        """
        with self._bad_message_as_down():
            return _profiles(self._call({"call": "profiles", "cursor": cursor}))

    def samples(self, cursor: Cursor) -> Page[ServerSamples]:
        """Return the samples of busy threads after the cursor by server.

        Call again with the new cursor if there are more.
        """
        now = time.time()
        with self._bad_message_as_down():
            reply = self._call({"call": "samples", "cursor": cursor})
            return _samples(reply, now - _SAMPLES_S, now + _SAMPLES_S)

    def snapshots(
        self, server: str, begin: float, end: float, *, stacks: bool
    ) -> tuple[tuple[SnapshotSummary, ...], tuple[ObservedStack, ...]]:
        """Return a server's snapshots between two Unix times, with stacks on request.

        ``server`` is the sensor's name for the server.
        """
        request = {"call": "snapshots", "server": server, "from": begin, "to": end, "stacks": stacks}
        with self._bad_message_as_down():
            return decode_snapshots(self._call(request))

    def probes(self) -> dict[str, list[dict[str, Any]]]:
        """Return the status of each probe, by server."""
        with self._bad_message_as_down():
            return messages.decoded(self._call({"call": "probes"}), _Statuses).servers

    def _call(self, request: Mapping[str, Any], timeout: float | None = None) -> dict[str, Any]:
        timeout = self._timeout if timeout is None else timeout
        deadline = time.monotonic() + timeout
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as wire:
                # settimeout() makes connect() non-blocking, which fails if the backlog is full
                wire.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _timeval(timeout))
                wire.connect(self.path)
                with suppress(BrokenPipeError):  # refused before the request was sent; the reply explains why
                    messages.send(wire, request, messages.REQUEST_BYTES, deadline)
                reply = messages.receive(wire, messages.REPLY_BYTES, deadline)
        except (messages.TooSlow, TimeoutError, BlockingIOError) as error:
            raise self._down(f"no reply within {timeout:g} s") from error
        except OSError as error:
            raise self._unreachable(error) from error
        except messages.BadMessage as error:
            raise self._down(error.what) from error
        if not isinstance(reply, dict) or not isinstance(reply.get("ok"), dict):
            reason = reply.get("error") if isinstance(reply, dict) else None
            raise self._down(str(reason or "malformed reply")[:300])
        return dict(reply["ok"])

    @contextmanager
    def _bad_message_as_down(self) -> Iterator[None]:
        """Convert BadMessage to SensorDown."""
        try:
            yield
        except messages.BadMessage as error:
            raise self._down(error.what) from error

    def _unreachable(self, error: OSError) -> SensorDown:
        if error.errno in (errno.EACCES, errno.EPERM):
            return SensorDown(
                f"cannot connect to the sensor at {self.path}: permission denied",
                remedy=f"as root, or as a member of the socket's group: ls -l {self.path}",
            )
        return self._down(error.strerror or str(error))

    def _down(self, reason: str) -> SensorDown:
        other = "" if self.path == DEFAULT_SOCKET else f" --sensor-socket {self.path}"
        start = "sudo innoscope sensor" if os.geteuid() else "innoscope sensor"
        return SensorDown(
            f"cannot query the sensor at {self.path}: {reason}", remedy=f"start it: {start}{other}"
        )


def _timeval(seconds: float) -> bytes:
    """Convert seconds to the kernel's struct timeval."""
    return struct.pack("@ll", int(seconds), int(seconds % 1 * 1e6))


def _profiles(reply: Any) -> Page[ServerProfiles]:
    def decode(target: Target, body: dict[str, Any]) -> ServerProfiles:
        return ServerProfiles(target, decode_chunks(body))

    return _page(reply, decode)


def _samples(reply: Any, earliest: float, latest: float) -> Page[ServerSamples]:
    def decode(target: Target, body: dict[str, Any]) -> ServerSamples:
        return ServerSamples(target, decode_samples(body, earliest, latest))

    return _page(reply, decode)


def _page(reply: Any, decode: Callable[[Target, dict[str, Any]], T]) -> Page[T]:
    page = messages.decoded(reply, _Page)
    cursor, servers = {}, {}
    for name, body in page.servers.items():
        part = messages.decoded(body, _Part)
        cursor[name] = part.cursor
        servers[name] = decode(messages.decode_target(part.target), body)
    return Page(cursor, servers, page.more)
