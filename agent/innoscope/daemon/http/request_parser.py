"""Parse the request line and the headers of an HTTP request strictly.

Everything that a proxy in front of the agent could interpret differently is rejected: other line endings,
folded headers, duplicate Host, Content-Length and Authorization headers, and bodies.
"""

from __future__ import annotations

import re
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from io import BufferedIOBase

METHODS: Final = ("GET", "HEAD")
LINE_BYTES: Final = 8 << 10
#: Maximum size of all headers in bytes. Browsers also send the cookies of other services on this host.
HEADER_BYTES: Final = 32 << 10
HEADERS: Final = 100

_LINE: Final = re.compile(rb"([A-Z]+) ([!-~]+) HTTP/1\.[01]\r\n")
_HEADER: Final = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([\t -~\x80-\xff]*?)[ \t]*\r\n")
_HOST: Final = re.compile(rb"[\w.:\[\]%-]*")
_ONCE: Final = frozenset({b"host", b"content-length", b"authorization"})


class RequestRejected(Exception):
    """The request is rejected with ``status`` and ``reason``, and the connection is closed."""

    def __init__(self, status: HTTPStatus, reason: str) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason


def check_line(line: bytes) -> None:
    """Check the method, path and version in a request line. Raise RequestRejected if one is invalid."""
    if len(line) > LINE_BYTES:
        raise RequestRejected(
            HTTPStatus.REQUEST_URI_TOO_LONG, f"request line too long: at most {LINE_BYTES:,} bytes"
        )
    match = _LINE.fullmatch(line)
    if match is None:
        raise _bad("malformed request line: HTTP/1.0 or 1.1 expected")
    if match[1].decode() not in METHODS:
        raise RequestRejected(HTTPStatus.METHOD_NOT_ALLOWED, f"only {' and '.join(METHODS)} are supported")
    if not match[2].startswith(b"/"):
        raise _bad("the request target must be a path: this is not a proxy")


def read(source: BufferedIOBase, *, needs_host: bool) -> bytes:
    """Read and check the header lines. Return them unchanged, with the empty line that ends them.

    Raise RequestRejected if they are not acceptable or too large, and OSError if the connection fails.
    """
    lines: list[bytes] = []
    names: list[bytes] = []
    left = HEADER_BYTES
    while True:
        line = source.readline(left + 1)
        left -= len(line)
        if left < 0 or len(lines) > HEADERS:
            raise RequestRejected(
                HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE,
                f"at most {HEADERS} headers and {HEADER_BYTES:,} bytes of them",
            )
        if not line.endswith(b"\n"):
            raise ConnectionAbortedError("the connection ended in the middle of a request")
        lines.append(line)
        if line == b"\r\n":
            break
        names.append(_name(line))
    if any(names.count(name) > 1 for name in _ONCE):
        raise _bad("duplicate header")
    if needs_host and b"host" not in names:
        raise _bad("missing Host header")
    return b"".join(lines)


def _name(line: bytes) -> bytes:
    """Check a header line, and return the header's name in lower case.

    Raise RequestRejected if the line is malformed, or if it announces a body.
    """
    match = _HEADER.fullmatch(line)
    if match is None:
        raise _bad("malformed header line")
    name, value = match[1].lower(), match[2]
    if name == b"transfer-encoding" or (name == b"content-length" and value != b"0"):
        raise _bad("a request must not have a body")
    if name == b"host" and not _HOST.fullmatch(value):
        raise _bad("malformed Host header")
    return name


def _bad(reason: str) -> RequestRejected:
    return RequestRejected(HTTPStatus.BAD_REQUEST, reason)
