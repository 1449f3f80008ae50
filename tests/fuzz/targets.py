"""The fuzz targets: names and limits, and the functions that the Python targets run."""

from __future__ import annotations

import gzip
import io
import json
import re
import socket
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pymysql.constants import CR
from pymysql.err import OperationalError
from pymysql.protocol import MysqlPacket

from fuzz import document_targets
from fuzz.document_targets import memory_folder
from fuzz.server_memory import Fuzzed, layout
from innoscope.common.errors import InnoscopeError
from innoscope.common.schema import read_yaml
from innoscope.daemon.agent import config
from innoscope.daemon.agent.session_hour import SessionHour
from innoscope.daemon.http import request_parser, web_config
from innoscope.daemon.protocol import messages, sample_encoding
from innoscope.diagnose import advice, process_list, rules, sql_queries
from innoscope.diagnose.incident import files
from innoscope.memory import catalog as memory_catalog
from innoscope.memory import known_layouts
from innoscope.memory.locks import layout as locks_layout
from innoscope.memory.locks import sessions
from innoscope.memory.locks.blockers import BLOCKED, Blockers, Waiter
from innoscope.memory.statements import layout as statements_layout
from innoscope.metrics import registry
from innoscope.metrics.collectors import kinds, sql_catalog, state_catalog
from innoscope.probes import catalog as probes_catalog
from innoscope.probes.trace import hot
from innoscope.sampling import activities, latches
from innoscope.sampling import wait_catalog as waits_catalog
from innoscope.sampling.sessions.store import HistoryLimits, HistoryStore
from innoscope.target import allowed_users, sql
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
    "history": 8 << 10,
    "statements": 64 << 10,
}
#: Maximum CPU seconds for one input.
MAX_SECONDS: Final = 1.0
#: Maximum growth of resident memory in MiB.
MAX_MEMORY: Final = 64
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
    ("hot.yaml", lambda path: read_yaml(path, hot.HotFile)),
    ("owners.yaml", lambda path: read_yaml(path, locks_layout.OwnersFile)),
    ("settings.yaml", lambda path: read_yaml(path, advice.SettingsFile)),
    ("statements.yaml", lambda path: read_yaml(path, statements_layout.StatementsFile)),
    ("states.yaml", lambda path: read_yaml(path, process_list.States)),
    ("servers.toml", lambda path: allowed_users.load(str(path))),
    ("state.yaml", state_catalog.load),
    ("thread_queries.yaml", sql.load),
)
_FRAME_S: Final = 0.5
_STATUS, _PEAK = Path("/proc/self/status"), Path("/proc/self/clear_refs")
#: A directory that does not exist, so that nothing is written.
_NOWHERE: Final = Path("/nonexistent/history")
#: Maximum thread id, number of connections whose locks are read in a snapshot, and length of a lock's name.
_MOST_TID, _MOST_BUSY, _MOST_OBJECT = 1 << 22, 1_000, 1_000
#: A password long enough not to occur in a greeting by chance.
PASSWORD: Final = "correct horse battery staple"  # noqa: S105


@dataclass(frozen=True)
class Target:
    """A Python target. ``packages`` are instrumented for coverage; ``max_len`` is in bytes."""

    run: Callable[[bytes], None]
    packages: tuple[str, ...]
    max_len: int


class TooSlow(AssertionError):
    """The error for an input that took too much CPU time."""


class TooLarge(AssertionError):
    """The error for an input that needed too much memory."""


def within_limits(run: Callable[[bytes], None], data: bytes) -> None:
    """Call ``run`` with ``data``. Raise TooSlow or TooLarge if it uses too much CPU time or memory.

    The memory of a call is the peak during the call minus the resident memory before it.
    """
    _PEAK.write_text("5")  # resets VmHWM (proc_pid_clear_refs(5))
    before = _resident_kib("VmRSS")
    began = time.thread_time()
    run(data)
    seconds = time.thread_time() - began
    if seconds >= MAX_SECONDS:
        raise TooSlow(f"{seconds:.2f} s of CPU for {len(data):,} bytes")
    grown = _resident_kib("VmHWM") - before
    if grown > MAX_MEMORY << 10:
        raise TooLarge(f"{grown >> 10} MiB of memory for {len(data):,} bytes")


def _resident_kib(name: str) -> int:
    """Return a value from /proc/self/status in KiB."""
    found = re.search(rf"^{name}:\s+(\d+) kB$", _STATUS.read_text(), re.MULTILINE)
    if found is None:
        raise AssertionError(f"the kernel has no {name}")
    return int(found[1])


def _in_file(data: bytes, load: Callable[[Path], object]) -> None:
    """Load ``data`` from a file. The loader may raise only InnoscopeError."""
    with tempfile.NamedTemporaryFile(dir=memory_folder()) as file:
        file.write(data)
        file.flush()
        try:
            load(Path(file.name))
        except InnoscopeError:
            return


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
    """Decode the samples in a reply of the sensor, and record them; ``data`` is their JSON."""
    try:
        batch = sample_encoding.decode_samples(json.loads(data), 0.0, 4e9)
    except (InnoscopeError, ValueError, RecursionError):
        return
    SessionHour().add("3306", batch)
    HistoryStore(_NOWHERE, HistoryLimits()).add("3306", batch)


def locks(data: bytes) -> None:
    """Read connections, and the locks that they are waiting for, from a server's memory ``data``."""
    if not data:
        return
    memory, parts = Fuzzed(data), layout(data[0])
    if parts.sessions is None:
        raise AssertionError("the layout has connections")
    found = sessions.read(memory, parts.sessions, range(1, _MOST_TID))[:_MOST_BUSY]
    tids = {one.thread for one in found}
    blockers = Blockers(memory, parts)
    for runs in (1, 1, 2):
        waiters = [
            Waiter(one.thread, wait, one.address, one.connection, runs) for wait in BLOCKED for one in found
        ]
        for blocked in blockers.find(waiters, tids).values():
            if blocked.connection == 0 or len(blocked.object or "") > _MOST_OBJECT:
                raise AssertionError(f"malformed: {blocked!r:.300}")


def http(data: bytes) -> None:
    """Read the head of an HTTP request."""
    line, _, rest = data.partition(b"\n")
    try:
        request_parser.check_line(line + b"\n")
        lines = request_parser.read(io.BufferedReader(io.BytesIO(rest)), needs_host=True)
    except (request_parser.RequestRejected, ConnectionAbortedError):
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
    "locks": Target(locks, ("innoscope.memory.locks",), 64 << 10),
    "http": Target(http, ("innoscope.daemon.http.request_parser",), 40 << 10),
    "greeting": Target(greeting, ("innoscope.target.wire", "innoscope.target.login"), 4 << 10),
    "catalogs": Target(catalogs, ("innoscope",), 64 << 10),
    "requests": Target(document_targets.requests, ("innoscope.daemon.sensor",), 16 << 10),
    "chunks": Target(document_targets.chunks, ("innoscope.daemon.protocol.stack_encoding",), 60 << 10),
    "snapshots": Target(document_targets.snapshots, ("innoscope.daemon.protocol.stack_encoding",), 60 << 10),
    "recording": Target(document_targets.recording, ("innoscope.sampling.recording",), 20 << 10),
    "status": Target(document_targets.status, ("innoscope.diagnose.incident.redaction",), 32 << 10),
    "journal": Target(document_targets.journal, ("innoscope.toggles.journal_format",), 32 << 10),
}


def json_bytes(value: object) -> bytes:
    """Encode ``value`` as the protocol does."""
    return json.dumps(value, separators=(",", ":")).encode()
