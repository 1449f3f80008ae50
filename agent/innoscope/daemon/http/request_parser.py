"""The head of an HTTP request, taken literally.

What a proxy before us could understand in another way than we do is refused and not guessed: lines that end
otherwise, folded headers, two lengths, a body.
"""

from __future__ import annotations

import re
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from io import BufferedIOBase

METHODS: Final = ("GET", "HEAD")
LINE_BYTES: Final = 8 << 10
#: All headers together. Browsers send the cookies of everything else on this host along.
HEADER_BYTES: Final = 32 << 10
HEADERS: Final = 100

_LINE: Final = re.compile(rb"([A-Z]+) ([!-~]+) HTTP/1\.[01]\r\n")
_HEADER: Final = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([\t -~\x80-\xff]*?)[ \t]*\r\n")
_HOST: Final = re.compile(rb"[\w.:\[\]%-]*")
_ONCE: Final = frozenset({b"host", b"content-length", b"authorization"})


class Refused(Exception):
    """It is not answered, and the connection ends."""

    def __init__(self, status: HTTPStatus, words: str) -> None:
        super().__init__(words)
        self.status = status
        self.words = words


def check_line(line: bytes) -> None:
    """The request line: method, a path of ours, version. Raises Refused."""
    if len(line) > LINE_BYTES:
        raise Refused(HTTPStatus.REQUEST_URI_TOO_LONG, f"a request line has at most {LINE_BYTES:,} bytes")
    found = _LINE.fullmatch(line)
    if found is None:
        raise _bad("not a request line of HTTP/1.0 or 1.1")
    if found[1].decode() not in METHODS:
        raise Refused(HTTPStatus.METHOD_NOT_ALLOWED, f"only {' and '.join(METHODS)} are answered")
    if not found[2].startswith(b"/"):
        raise _bad("a request is for a path; this is no proxy")


def read(source: BufferedIOBase, *, needs_host: bool) -> bytes:
    """All header lines and the empty one behind them, as they came. Raises Refused, or OSError."""
    lines: list[bytes] = []
    names: list[bytes] = []
    left = HEADER_BYTES
    while True:
        line = source.readline(left + 1)
        left -= len(line)
        if left < 0 or len(lines) > HEADERS:
            raise Refused(
                HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE,
                f"at most {HEADERS} headers and {HEADER_BYTES:,} bytes of them",
            )
        if not line.endswith(b"\n"):
            raise ConnectionAbortedError("the connection ended within a request")
        lines.append(line)
        if line == b"\r\n":
            break
        names.append(_name(line))
    if any(names.count(name) > 1 for name in _ONCE):
        raise _bad("a header that there is once stands there twice")
    if needs_host and b"host" not in names:
        raise _bad("no Host")
    return b"".join(lines)


def _name(line: bytes) -> bytes:
    """The header's name in small letters, once its value is one that we take. Raises Refused."""
    found = _HEADER.fullmatch(line)
    if found is None:
        raise _bad("a header line that is none")
    name, value = found[1].lower(), found[2]
    if name == b"transfer-encoding" or (name == b"content-length" and value != b"0"):
        raise _bad("a request has no body here")
    if name == b"host" and not _HOST.fullmatch(value):
        raise _bad("a Host that is none")
    return name


def _bad(words: str) -> Refused:
    return Refused(HTTPStatus.BAD_REQUEST, words)
