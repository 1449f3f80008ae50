"""The socket below an SQL connection: what a server answers is bounded in rows, bytes and time.

PyMySQL has a timeout for each read, so a server that sends a row now and then can hold us for ever, and it
keeps all rows that come. Here an answer has a deadline as a whole, and packets are counted as they arrive.
"""

from __future__ import annotations

import math
import socket
import ssl
import struct
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from innoscope.common.errors import SqlFailed

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer, WriteableBuffer

#: Bytes of one answer. The longest that we ask for: 20,000 threads, most of them idle.
MOST_BYTES: Final = 4 << 20
#: Values of one answer, a row counting as two more: each is an object, however few bytes it has.
MOST_VALUES: Final = 250_000
#: Columns of one answer: a first byte beyond this is that of a longer number.
_MOST_COLUMNS: Final = 250
#: Packets of an answer that is no table, and of a login.
_MOST_PACKETS: Final = 64
_HEADER: Final = struct.Struct("<HBB")
_MOST_GREETING: Final = 4096
_ERROR: Final = 0xFF
_PROTOCOL: Final = b"\x0a"
#: After the version: thread id, 8 bytes of the nonce, capabilities in two halves, others, 10 reserved bytes.
_FIXED: Final = 31
#: Where the nonce's length is, how much of the nonce comes before it, and the least that comes after it.
_NONCE_LENGTH: Final = 20
_NONCE_BEGIN: Final = 8
_LEAST_NONCE: Final = 13
_PLUGIN_AUTH: Final = 1 << 3  # CLIENT_PLUGIN_AUTH, in the upper half of the capabilities


@dataclass(slots=True)
class Budget:
    """What one answer may still take. ``login_until`` is set while we log in, over all its answers."""

    seconds: float
    login_until: float = math.inf
    until: float = math.inf
    bytes_left: int = MOST_BYTES
    packets_left: int = _MOST_PACKETS
    skip: int = 0  # bytes of the current packet that are still to come
    head: bytes = b""  # the part of a header that has come
    first: bool = True  # the next packet is the first of an answer

    def begin(self) -> None:
        """Start a new answer: we are about to ask."""
        self.until = min(time.monotonic() + self.seconds, self.login_until)
        self.bytes_left, self.packets_left = MOST_BYTES, _MOST_PACKETS
        self.skip, self.head, self.first = 0, b"", True

    def rest(self) -> float:
        """Return the seconds that are left. Raises TimeoutError."""
        rest = self.until - time.monotonic()
        if rest <= 0:
            raise TimeoutError("timed out")
        return rest

    def take(self, data: memoryview) -> None:
        """Count what has arrived. Raises SqlFailed beyond the limits."""
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
                f"no SQL: the server's answer is longer than {MOST_BYTES >> 20} MB or {MOST_VALUES:,} values",
                remedy="stacks work without SQL: leave out --queries",
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
        """Allow for the rows of a table: its answer begins with the number of its columns."""
        if self.logging_in:
            return
        if 0 < columns <= _MOST_COLUMNS:
            self.packets_left = MOST_VALUES // (columns + 2) + columns
        elif columns != _ERROR and columns:
            self.packets_left = -1

    @property
    def logging_in(self) -> bool:
        """Whether the login is not over yet."""
        return self.login_until < math.inf


class _Bounded(socket.socket):
    """Keeps to a budget. PyMySQL's own timeouts, one for each read, are of no interest."""

    budget: Budget

    def recv_into(self, buffer: WriteableBuffer, nbytes: int = 0, flags: int = 0) -> int:
        """Receive, before the budget's deadline."""
        self._hasten()
        view = memoryview(buffer)
        count = super().recv_into(view, nbytes or len(view), flags)
        self.budget.take(view[:count])
        return count

    def sendall(self, data: ReadableBuffer, flags: int = 0) -> None:
        """Send a question: its answer has a budget of its own."""
        self.budget.begin()
        self._hasten()
        super().sendall(data, flags)

    def settimeout(self, value: float | None) -> None:
        """Leave it as it is: the budget says."""

    def _hasten(self) -> None:
        super().settimeout(self.budget.rest())


class Wire(_Bounded):
    """A connected socket whose greeting was read, and is read again by PyMySQL."""

    def __init__(self, family: int, address: Any, budget: Budget) -> None:
        super().__init__(family, socket.SOCK_STREAM)
        self.budget = budget
        self._again = b""
        self._greeted = False
        try:
            budget.begin()
            self._hasten()
            self.connect(address)
        except BaseException:
            self.close()
            raise

    def recv_into(self, buffer: WriteableBuffer, nbytes: int = 0, flags: int = 0) -> int:
        """Receive; first of all what ``check_greeting`` has read."""
        if not self._again:
            return super().recv_into(buffer, nbytes, flags)
        view = memoryview(buffer)
        count = min(nbytes or len(view), len(self._again))
        view[:count], self._again = self._again[:count], self._again[count:]
        return count

    def check_greeting(self) -> None:
        """Read what the server says first, before we say a word. PyMySQL reads it again.

        Raises OSError, or SqlFailed if it is neither a greeting nor an error.
        """
        if self._greeted:
            return
        head = self._exactly(_HEADER.size)
        low, high, _ = _HEADER.unpack(head)
        size = low + (high << 16)
        if not 0 < size <= _MOST_GREETING:
            raise _no_server()
        self._again, self._greeted = head + self._exactly(size), True
        require_greeting(self._again[_HEADER.size :])

    def _exactly(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            self._hasten()
            piece = self.recv(size - len(data))
            if not piece:
                raise ConnectionResetError("the server closed the connection")
            data += piece
        return bytes(data)


@dataclass(frozen=True, slots=True)
class Greeting:
    """What matters of a server's greeting: whether it speaks TLS, and the account's probable plugin."""

    tls: bool
    plugins: bool  # it names the plugin when it asks for another one
    plugin: str
def tls_context(base: ssl.SSLContext, budget: Budget) -> ssl.SSLContext:
    """Make what the context wraps keep to the budget."""

    class Encrypted(_Bounded, ssl.SSLSocket):  # type: ignore[misc]  # None or 0: read as much as there is room
        """A TLS connection with that budget."""

        def do_handshake(self, block: bool = False) -> None:
            """Shake hands, before the budget's deadline."""
            self._hasten()
            super().do_handshake(block)

    Encrypted.budget = budget
    base.sslsocket_class = Encrypted
    return base


def require_greeting(payload: bytes) -> None:
    """Raise SqlFailed unless it is an error, or Protocol::HandshakeV10 with all the bytes that it announces.

    In a shorter one PyMySQL takes one field for another: a nonce that is too short is the plugin's name.
    """
    if payload[:1] == bytes([_ERROR]):
        return
    version, end, after = payload[1:].partition(b"\0")
    if payload[:1] != _PROTOCOL or not version or not end or len(after) < _FIXED:
        raise _no_server()
    names_plugin = int.from_bytes(after[18:20], "little") & _PLUGIN_AUTH
    plugin = _FIXED + max(_LEAST_NONCE, after[_NONCE_LENGTH] - _NONCE_BEGIN)
    if len(after) < plugin + bool(names_plugin) or not after[plugin:].partition(b"\0")[0].isascii():
        raise _no_server()


def _no_server() -> SqlFailed:
    return SqlFailed("no SQL: what listens there is no MySQL server", remedy="innoscope targets")
