"""Request heads that a proxy could interpret differently are rejected."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

import pytest

from innoscope.daemon.http import request_parser

if TYPE_CHECKING:
    from http import HTTPStatus

HOST = b"Host: localhost\r\n"


def status(raw: bytes) -> HTTPStatus | None:
    """Return the status of a rejected request head, or None."""
    source = io.BytesIO(raw)
    line = source.readline()
    try:
        request_parser.check_line(line)
        request_parser.read(source, needs_host=b"/1.1" in line)
    except request_parser.RequestRejected as refused:
        return refused.status
    return None


@pytest.mark.parametrize(
    "raw",
    [
        b"GET / HTTP/1.1\r\n" + HOST + b"\r\n",
        b"HEAD /metrics?a=b&c=%20 HTTP/1.1\r\nhost:\t[::1]:9977 \r\nAccept: */*\r\n\r\n",
        b"GET / HTTP/1.0\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + HOST + b"Content-Length: 0\r\nX-Empty:\r\nX-Name: m\xfcller\r\n\r\n",
    ],
)
def test_valid_request_heads_are_accepted(raw: bytes) -> None:
    assert status(raw) is None


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (b"GET /", 400),  # HTTP/0.9
        (b"GET / HTTP/2.0", 400),
        (b"GET  / HTTP/1.1", 400),
        (b"GET / HTTP/1.1 ", 400),
        (b"get / HTTP/1.1", 400),
        (b"GET\t/\tHTTP/1.1", 400),
        (b"GET /\x0bapi HTTP/1.1", 400),
        (b"GET /\x00 HTTP/1.1", 400),
        (b"GET /\xa0x HTTP/1.1", 400),
        (b"", 400),
        (b"\x16\x03\x01\x02\x00", 400),  # TLS
        (b"GET http://localhost/api/stacks HTTP/1.1", 400),
        (b"GET * HTTP/1.1", 400),
        (b"GET api/stacks HTTP/1.1", 400),
        (b"CONNECT localhost:9977 HTTP/1.1", 405),
        (b"POST / HTTP/1.1", 405),
        (b"OPTIONS * HTTP/1.1", 405),
        (b"GET /" + b"x" * request_parser.LINE_BYTES + b" HTTP/1.1", 414),
    ],
)
def test_malformed_request_line_is_refused(line: bytes, expected: int) -> None:
    assert status(line + b"\r\n" + HOST + b"\r\n") == expected


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (b"", 400),  # no Host
        (HOST + HOST, 400),
        (b"Host: localhost\\@evil\r\n", 400),
        (b"Host: evil/localhost\r\n", 400),
        (HOST + b"X: 1\r\n folded\r\n", 400),
        (HOST + b"X : 1\r\n", 400),
        (HOST + b"no colon\r\n", 400),
        (HOST + b": no name\r\n", 400),
        (HOST + b"X: \x00\r\n", 400),
        (HOST + b"X: a\rb\r\n", 400),
        (HOST + b"X: bare\n", 400),
        (b"Host: localhost\n", 400),
        (HOST + b"Content-Length: 5\r\n", 400),
        (HOST + b"Content-Length: 0\r\nContent-Length: 0\r\n", 400),
        (HOST + b"Content-Length: +0\r\n", 400),
        (HOST + b"Transfer-Encoding: chunked\r\n", 400),
        (HOST + b"transfer-encoding: identity\r\nContent-Length: 0\r\n", 400),
        (HOST + b"Authorization: Basic YQ==\r\nAuthorization: Basic Yg==\r\n", 400),
        (HOST + b"X: 1\r\n" * request_parser.HEADERS, 431),
        (HOST + b"X: " + b"x" * request_parser.HEADER_BYTES + b"\r\n", 431),
    ],
)
def test_malformed_header_line_is_refused(lines: bytes, expected: int) -> None:
    assert status(b"GET / HTTP/1.1\r\n" + lines + b"\r\n") == expected


def test_connection_that_ends_within_a_head_is_not_a_request() -> None:
    with pytest.raises(ConnectionAbortedError):
        status(b"GET / HTTP/1.1\r\nHost: lo")
