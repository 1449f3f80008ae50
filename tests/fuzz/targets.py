"""The fuzz targets: names and limits, and the functions that the Python targets run."""

from __future__ import annotations

import gzip
import io
import json
import socket
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pymysql.constants import CR
from pymysql.err import OperationalError
from pymysql.protocol import MysqlPacket

from innoscope.common.errors import InnoscopeError
from innoscope.daemon.agent import config
from innoscope.daemon.http import request_parser, web_config
from innoscope.daemon.protocol import messages, sample_encoding
from innoscope.diagnose import rules, sql_queries
from innoscope.diagnose.incident import files
from innoscope.memory import catalog as memory_catalog
from innoscope.memory import known_layouts
from innoscope.metrics import registry
from innoscope.metrics.collectors import kinds, sql_catalog
from innoscope.probes import catalog as probes_catalog
from innoscope.sampling import activities, latches
from innoscope.sampling import wait_catalog as waits_catalog
from innoscope.target.credentials import Credentials
from innoscope.target.login import Connection, budget
from innoscope.target.sql_errors import explaining
from innoscope.target.wire import require_greeting
from innoscope.toggles import catalog as toggles_catalog

if TYPE_CHECKING:
    from collections.abc import Callable

#: Maximum input size in bytes of each Rust target. Each target is a binary of `tests/fuzz/rust`.
RUST: Final = {
    "elf": 64 << 10,
    "unwind": 32 << 10,
    "dwarf": 256 << 10,
    "pack": 64 << 10,
    "demangle": 4 << 10,
    "digest": 16 << 10,
}
#: Maximum CPU seconds for one input.
MAX_SECONDS: Final = 1.0
#: Loaders of catalogs and configurations; the first byte of an input chooses one.
LOADERS: Final[tuple[tuple[str, Callable[[Path], object]], ...]] = (
    ("waits.yaml", waits_catalog.load),
    ("probes.yaml", probes_catalog.load),
    ("memory.yaml", memory_catalog.load),
    ("layouts.yaml", known_layouts.load),
    ("metrics.yaml", registry.load),
    ("sql.yaml", sql_catalog.load),
    ("threads.yaml", kinds.load),
    ("toggles.yaml", toggles_catalog.load),
    ("findings.yaml", rules.load),
    ("latches.yaml", latches.load),
    ("questions.yaml", sql_queries.load),
    ("activities.yaml", activities.load),
    ("agent.toml", config.load),
    ("web.yaml", web_config.load),
)
_FRAME_S: Final = 0.5
#: A password long enough not to occur in a greeting by chance.
PASSWORD: Final = "correct horse battery staple"  # noqa: S105


@dataclass(frozen=True)
class Target:
    """A Python target. ``packages`` are instrumented for coverage; ``max_len`` is in bytes."""

    run: Callable[[bytes], None]
    packages: tuple[str, ...]
    max_len: int


class TooSlow(AssertionError):
    """One input took too much CPU time."""


def within_limits(run: Callable[[bytes], None], data: bytes) -> None:
    """Call ``run`` with ``data``. Raise TooSlow if it uses too much CPU time; libFuzzer limits memory."""
    began = time.thread_time()
    run(data)
    seconds = time.thread_time() - began
    if seconds >= MAX_SECONDS:
        raise TooSlow(f"{seconds:.2f} s of CPU for {len(data):,} bytes")


def _in_file(data: bytes, load: Callable[[Path], object]) -> None:
    """Load ``data`` from a file. The loader may raise only InnoscopeError."""
    with tempfile.NamedTemporaryFile(dir=_shared_memory()) as file:
        file.write(data)
        file.flush()
        try:
            load(Path(file.name))
        except InnoscopeError:
            return


def _shared_memory() -> str | None:
    return "/dev/shm" if Path("/dev/shm").is_dir() else None  # noqa: S108 - only for speed


def incident(data: bytes) -> None:
    """Read an incident file that is made from ``data``.

    If the first byte is below 0x80, the rest is the file. Otherwise, the rest is the uncompressed JSON text.
    """
    kind, rest = data[:1], data[1:]
    _in_file(rest if kind < b"\x80" else gzip.compress(rest, 1), files.load)


def sensor(data: bytes) -> None:
    """Read and decode a reply of the sensor's protocol; ``data`` is the frame without its length prefix."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        theirs.sendall(len(data).to_bytes(4, "big") + data)
        theirs.shutdown(socket.SHUT_WR)
        try:
            message = messages.receive(ours, messages.REQUEST_BYTES, time.monotonic() + _FRAME_S)
            messages.decode_reply(message)
        except InnoscopeError:
            return


def samples(data: bytes) -> None:
    """Decode the samples in a reply of the sensor; ``data`` is their JSON."""
    try:
        sample_encoding.decode_samples(json.loads(data), 0.0, 4e9)
    except (InnoscopeError, ValueError, RecursionError):
        return


def http(data: bytes) -> None:
    """Read the head of an HTTP request."""
    line, _, rest = data.partition(b"\n")
    try:
        request_parser.check_line(line + b"\n")
        lines = request_parser.read(io.BufferedReader(io.BytesIO(rest)), needs_host=True)
    except (request_parser.Refused, ConnectionAbortedError):
        return
    most = request_parser.HEADER_BYTES + request_parser.LINE_BYTES
    if b"\n\n" in lines or b"\0" in lines or len(lines) > most:
        raise AssertionError(f"a malformed head was accepted: {lines[:200]!r}")


def catalogs(data: bytes) -> None:
    """Load a catalog or a configuration. The first byte selects the loader."""
    if data:
        _in_file(data[1:], LOADERS[data[0] % len(LOADERS)][1])


class _Replayed(Connection):
    """A client's TLS connection to an unverified server that sends only a greeting."""

    def __init__(self, greeting: bytes) -> None:
        super().__init__(Credentials("fuzz", PASSWORD), budget(1.0), verified=False, host="fuzz", tls=None)
        self._greeting: bytes | None = greeting
        self.sent = b""
        self.ssl, self.ctx, self._next_seq_id = True, self, 0

    def wrap_socket(self, *_: object, **__: object) -> _Replayed:
        """Return this connection in place of the encrypted socket."""
        return self

    def makefile(self, _mode: str) -> io.BytesIO:
        """Return an empty stream."""
        return io.BytesIO()

    def _read_packet(self, *_: object) -> MysqlPacket:
        if self._greeting is None:
            raise OperationalError(CR.CR_SERVER_LOST, "no more packets")
        packet, self._greeting = MysqlPacket(self._greeting, "utf8"), None
        return packet

    def _write_bytes(self, data: bytes) -> None:
        self.sent += data

    def _force_close(self) -> None:
        """Do nothing: there is no socket."""

    def begin(self) -> None:
        """Read the greeting and log in."""
        self._get_server_information()
        self._request_authentication()  # type: ignore[attr-defined]


def greeting(data: bytes) -> None:
    """Log in to a server that sends this greeting. Raise if the password is sent in clear text."""
    login = _Replayed(data)
    try:
        with explaining("fuzz", "here"):
            require_greeting(data)
            login.begin()
    except InnoscopeError:
        pass
    if PASSWORD.encode() in login.sent:
        raise AssertionError("the password was sent to an unverified server")


PYTHON: Final = {
    "incident": Target(incident, ("innoscope.diagnose.incident", "innoscope.diagnose"), 64 << 10),
    "sensor": Target(sensor, ("innoscope.daemon.protocol.messages",), 60 << 10),
    "samples": Target(samples, ("innoscope.daemon.protocol.sample_encoding",), 60 << 10),
    "http": Target(http, ("innoscope.daemon.http.request_parser",), 40 << 10),
    "greeting": Target(greeting, ("innoscope.target.wire", "innoscope.target.login"), 4 << 10),
    "catalogs": Target(catalogs, ("innoscope",), 64 << 10),
}


def json_bytes(value: object) -> bytes:
    """Encode ``value`` as the protocol does."""
    return json.dumps(value, separators=(",", ":")).encode()
