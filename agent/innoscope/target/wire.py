"""Provide a socket for SQL connections that limits the rows, bytes and time of each response.

PyMySQL's timeouts apply only to single reads, so a server that sends rows very slowly could block us forever.
PyMySQL also stores all rows. Here, each whole response has a deadline, and packets are counted as they
arrive.
"""

from __future__ import annotations

import math
import socket
import ssl
import struct
import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from innoscope.common.errors import SqlFailed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from _typeshed import ReadableBuffer, WriteableBuffer

    from innoscope.target.unanswered import Unanswered

#: Maximum size of a response in bytes. The longest regular response lists 20,000 threads, most of them idle.
MAX_BYTES: Final = 4 << 20
#: Maximum number of values in one response. Each value becomes a Python object; each row counts as two more.
MAX_VALUES: Final = 250_000
#: Maximum column count of a result set. A greater first byte is not a count: it is a prefix or a marker.
_MAX_COLUMNS: Final = 250
#: Maximum number of packets in a response without a result set, and in a login.
_MAX_PACKETS: Final = 64
_HEADER: Final = struct.Struct("<HBB")
_MAX_GREETING: Final = 4096
_ERROR: Final = 0xFF
_PROTOCOL: Final = b"\x0a"
#: Size in bytes of the fields after the version: thread id, 8 bytes of the nonce, both halves of the
#: capabilities, other fields, 10 reserved bytes.
_FIXED: Final = 31
#: Offset of the nonce's length.
_NONCE_LENGTH: Final = 20
#: Size of the nonce's first part in bytes.
_NONCE_BEGIN: Final = 8
#: Minimum size of the nonce's second part in bytes.
_MIN_NONCE: Final = 13
_PLUGIN_AUTH: Final = 1 << 3  # CLIENT_PLUGIN_AUTH, in the upper half of the capabilities


@dataclass(slots=True)
class Budget:
    """The remaining limits of one response. ``login_until`` limits all responses of a login together.

    A connection whose response does not arrive in time is passed to ``unanswered``, if it is not None.
    """

    seconds: float
    login_until: float = math.inf
    unanswered: Unanswered | None = None
    until: float = math.inf
    bytes_left: int = MAX_BYTES
    packets_left: int = _MAX_PACKETS
    skip: int = 0  # bytes of the current packet that have not arrived yet
    head: bytes = b""  # the bytes of a header that have arrived
    first: bool = True  # whether the next packet is the first of a response

    def begin(self) -> None:
        """Start a new response. Call this before a request is sent."""
        self.until = min(time.monotonic() + self.seconds, self.login_until)
        self.bytes_left, self.packets_left = MAX_BYTES, _MAX_PACKETS
        self.skip, self.head, self.first = 0, b"", True

    def rest(self) -> float:
        """Return the remaining seconds. Raise TimeoutError if none remain."""
        rest = self.until - time.monotonic()
        if rest <= 0:
            raise TimeoutError("timed out")
        return rest

    def take(self, data: memoryview) -> None:
        """Count data that has arrived. Raise SqlFailed if a limit is exceeded."""
        self.bytes_left -= len(data)
        position = 0
        while position < len(data):
            if self.skip:
                step = min(self.skip, len(data) - position)
                self.skip -= step
                position += step
                continue
            wanted = _HEADER.size + self.first - len(self.head)
            self.head += bytes(data[position : position + wanted])
            position += wanted
            if len(self.head) >= _HEADER.size + self.first:
                self._packet()
        if self.bytes_left < 0 or self.packets_left < 0:
            raise SqlFailed(
                f"no SQL: the server's answer is longer than {MAX_BYTES >> 20} MB or {MAX_VALUES:,} values",
                remedy="stacks work without SQL: omit --queries",
            )

    def _packet(self) -> None:
        low, high, _ = _HEADER.unpack_from(self.head)
        self.skip = low + (high << 16)
        self.packets_left -= 1
        if self.skip > self.bytes_left:
            self.bytes_left = -1
        if self.first and self.skip:
            self.skip -= 1
            self._first_byte(self.head[_HEADER.size])
        self.head, self.first = b"", False

    def _first_byte(self, columns: int) -> None:
        """Set the packet limit for a result set by its column count. Reject prefixes and unknown markers."""
        if self.logging_in:
            return
        if 0 < columns <= _MAX_COLUMNS:
            self.packets_left = MAX_VALUES // (columns + 2) + columns
        elif columns != _ERROR and columns:
            self.packets_left = -1

    @property
    def logging_in(self) -> bool:
        """Return whether the login is still in progress."""
        return self.login_until < math.inf


class _Bounded(socket.socket):
    """A socket that enforces a budget. PyMySQL's own timeouts, one per read, are ignored."""

    budget: Budget

    def recv_into(self, buffer: WriteableBuffer, nbytes: int = 0, flags: int = 0) -> int:
        """Receive data before the budget's deadline. Return the number of bytes."""
        view = memoryview(buffer)
        with self._deadline():
            count = super().recv_into(view, nbytes or len(view), flags)
        self.budget.take(view[:count])
        return count

    def sendall(self, data: ReadableBuffer, flags: int = 0) -> None:
        """Send a request. Its response gets a new budget."""
        self.budget.begin()
        with self._deadline():
            super().sendall(data, flags)

    def settimeout(self, value: float | None) -> None:
        """Ignore PyMySQL's timeout, because the budget sets the deadline."""

    @contextmanager
    def _deadline(self) -> Iterator[None]:
        """Apply the budget's deadline to an operation."""
        try:
            super().settimeout(self.budget.rest())
            yield
        except TimeoutError:
            if self.budget.unanswered is not None:
                self.budget.unanswered.keep(self)
            raise


class Wire(_Bounded):
    """A connected socket whose greeting is checked first, and then passed to PyMySQL."""

    def __init__(self, family: int, address: Any, budget: Budget) -> None:
        super().__init__(family, socket.SOCK_STREAM)
        self.budget = budget
        self._again = b""
        self._greeted = False
        try:
            budget.begin()
            super(_Bounded, self).settimeout(budget.rest())
            self.connect(address)
        except BaseException:
            self.close()
            raise

    def recv_into(self, buffer: WriteableBuffer, nbytes: int = 0, flags: int = 0) -> int:
        """Receive data, starting with the bytes that ``check_greeting`` has already read."""
        if not self._again:
            return super().recv_into(buffer, nbytes, flags)
        view = memoryview(buffer)
        count = min(nbytes or len(view), len(self._again))
        view[:count], self._again = self._again[:count], self._again[count:]
        return count

    def check_greeting(self) -> None:
        """Read and check the server's greeting before anything is sent. PyMySQL reads it afterward.

        Raise OSError, or SqlFailed if the packet is neither a greeting nor an error.
        """
        if self._greeted:
            return
        head = self._exactly(_HEADER.size)
        low, high, _ = _HEADER.unpack(head)
        size = low + (high << 16)
        if not 0 < size <= _MAX_GREETING:
            raise _not_mysql()
        self._again, self._greeted = head + self._exactly(size), True
        require_greeting(self._again[_HEADER.size :])

    def _exactly(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            with self._deadline():
                piece = self.recv(size - len(data))
            if not piece:
                raise ConnectionResetError("the server closed the connection")
            data += piece
        return bytes(data)


def tls_context(base: ssl.SSLContext, budget: Budget) -> ssl.SSLContext:
    """Make the context create sockets that enforce the budget, and return it."""

    class Encrypted(_Bounded, ssl.SSLSocket):  # type: ignore[misc]  # nbytes may be None
        """A TLS socket that enforces the budget."""

        def do_handshake(self, block: bool = False) -> None:
            """Perform the handshake before the budget's deadline."""
            with self._deadline():
                super().do_handshake(block)

    Encrypted.budget = budget
    base.sslsocket_class = Encrypted
    return base


def require_greeting(payload: bytes) -> None:
    """Raise SqlFailed unless the payload is an error or a complete Protocol::HandshakeV10.

    PyMySQL misreads incomplete greetings. For example, it can take a truncated nonce for the plugin's name.
    """
    if payload[:1] == bytes([_ERROR]):
        return
    version, end, after = payload[1:].partition(b"\0")
    if payload[:1] != _PROTOCOL or not version or not end or len(after) < _FIXED:
        raise _not_mysql()
    names_plugin = int.from_bytes(after[18:20], "little") & _PLUGIN_AUTH
    plugin = _FIXED + max(_MIN_NONCE, after[_NONCE_LENGTH] - _NONCE_BEGIN)
    if len(after) < plugin + bool(names_plugin) or not after[plugin:].partition(b"\0")[0].isascii():
        raise _not_mysql()


def _not_mysql() -> SqlFailed:
    return SqlFailed("no SQL: the process that listens is not a MySQL server", remedy="innoscope targets")
