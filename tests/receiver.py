"""A strict receiver for the documented ingest APIs of Pyroscope and Parca. It can also misbehave.

The receiver enforces the rules of these sources: pkg/ingester/pyroscope/ingest_handler.go and
api/model/labelset in Pyroscope; profilestore.proto with its JSON gateway and pkg/normalizer in Parca. It
replies to undocumented requests with status 400 and stores the reason in ``complaints``.
"""

from __future__ import annotations

import base64
import json
import re
import socket
import ssl
import struct
import threading
import time
from collections import deque
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import parse_qs, urlsplit

import pprofile

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from email.message import Message
    from pathlib import Path

PATHS = {"pyroscope": "/ingest", "parca": "/api/profiles/writeraw"}
_PYROSCOPE_QUERY = {"name", "from", "until", "format", "spyName"}


@dataclass(frozen=True, slots=True)
class Received:
    """One accepted profile. ``span`` is Pyroscope's ``from`` and ``until``, in Unix seconds."""

    labels: dict[str, str]
    profile: pprofile.Profile
    headers: Message
    size: int
    raw: bytes
    span: tuple[int, int] | None = None


class Receiver:
    """Context manager: a receiver on a loopback port.

    Each request triggers the next fault in ``faults``; if there is none left, ``always``, if it is set.
    """

    def __init__(
        self,
        kind: str = "pyroscope",
        *,
        certificate: Path | None = None,
        host: str = "127.0.0.1",
        handler: type[Handler] | None = None,
    ) -> None:
        self.kind = kind
        self.received: list[Received] = []
        self.complaints: list[str] = []
        self.requests = 0
        self.faults: deque[Callable[[Handler], None]] = deque()
        self.always: Callable[[Handler], None] | None = None
        self.ended = threading.Event()
        self._changed = threading.Condition()
        self._server = _Server((host, 0), handler or Handler)
        self._server.receiver = self
        if certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate / "cert.pem", certificate / "key.pem")
            self._server.tls = context
        scheme = "https" if certificate else "http"
        self.url = f"{scheme}://{host}:{self._server.server_address[1]}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.ended.set()
        self._server.shutdown()
        self._server.server_close()

    def fault(self) -> Callable[[Handler], None] | None:
        """Count a request and return the fault that it triggers; None if it is to succeed."""
        with self._changed:
            self.requests += 1
            self._changed.notify_all()
        return self.faults.popleft() if self.faults else self.always

    @contextmanager
    def pausing(self, fault: Callable[[Handler], None]) -> Iterator[None]:
        """Apply the fault to every request while the block runs."""
        before, self.always = self.always, fault
        try:
            yield
        finally:
            self.always = before

    def keep(self, one: Received) -> None:
        with self._changed:
            self.received.append(one)
            self._changed.notify_all()

    def until(self, holds: Callable[[], bool], patience_s: float = 60) -> None:
        """Wait until the condition holds; check it after each request."""
        deadline = time.monotonic() + patience_s
        with self._changed:
            while not holds():
                left = deadline - time.monotonic()
                assert left > 0, f"the condition never holds; {self.requests} requests, {self.complaints}"
                self._changed.wait(min(left, 0.2))


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    receiver: Receiver
    tls: ssl.SSLContext | None = None

    def finish_request(self, request: Any, client_address: Any) -> None:
        if self.tls is not None:
            request = self.tls.wrap_socket(request, server_side=True)
        super().finish_request(request, client_address)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore errors: some tests let the client disconnect."""


class Handler(BaseHTTPRequestHandler):
    """A handler of the requests on a connection, which triggers a fault, or checks and stores the profile."""

    protocol_version = "HTTP/1.1"
    server: _Server

    def do_POST(self) -> None:
        fault = self.server.receiver.fault()
        if fault is not None:
            fault(self)
            return
        body = self.body()
        try:
            self.server.receiver.keep(self._checked(body))
        except (AssertionError, ValueError, KeyError, LookupError) as error:
            self.server.receiver.complaints.append(f"{type(error).__name__}: {error}")
            self.answer(400, b'{"code":"invalid_argument","message":"not as documented"}')
            return
        parca = self.server.receiver.kind == "parca"
        self.answer(200, b"{}" if parca else b"")

    def body(self) -> bytes:
        return self.rfile.read(int(self.headers["Content-Length"]))

    def answer(self, status: int, body: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Do not log requests."""

    def _checked(self, body: bytes) -> Received:
        kind = self.server.receiver.kind
        assert urlsplit(self.path).path == PATHS[kind], f"no such path: {self.path}"
        return (self._pyroscope if kind == "pyroscope" else self._parca)(body)

    def _pyroscope(self, body: bytes) -> Received:
        query = parse_qs(urlsplit(self.path).query, strict_parsing=True)
        assert query.keys() == _PYROSCOPE_QUERY
        assert all(len(values) == 1 for values in query.values())
        assert query["format"] == ["pprof"]
        span = int(query["from"][0]), int(query["until"][0])
        assert all(re.fullmatch(r"\d{10}", query[name][0]) for name in ("from", "until"))
        assert span[0] < span[1]
        profile = pprofile.parse(body)
        assert span[0] <= profile.time_nanos / 1e9 <= span[1]
        return Received(label_set(query["name"][0]), profile, self.headers, len(body), body, span)

    def _parca(self, body: bytes) -> Received:
        assert self.headers["Content-Type"] == "application/json"
        request = json.loads(body)
        assert request.keys() <= {"tenant", "series", "normalized"}
        assert isinstance(request.get("normalized", False), bool)
        (series,) = request["series"]
        assert series.keys() == {"labels", "samples"}
        assert series["labels"].keys() == {"labels"}
        labels: dict[str, str] = {}
        for label in series["labels"]["labels"]:
            assert label.keys() == {"name", "value"}
            assert re.fullmatch(r"[a-zA-Z_][a-zA-Z0-9_]*", label["name"]), label
            assert label["name"] not in labels, "a label twice"
            assert isinstance(label["value"], str)
            labels[label["name"]] = label["value"]
        assert labels.get("__name__"), "missing __name__ label"
        (sample,) = series["samples"]
        assert sample.keys() == {"raw_profile"}
        raw = base64.b64decode(sample["raw_profile"], validate=True)
        return Received(labels, pprofile.parse(raw), self.headers, len(body), raw)


def label_set(name: str) -> dict[str, str]:
    """Parse ``app{label=value,…}`` as Pyroscope does: no quotes, values end at a comma or a brace."""
    service, brace, rest = name.partition("{")
    assert re.fullmatch(r"[a-zA-Z0-9_./-]+", service.strip()), f"invalid service name: {service!r}"
    labels = {"__name__": service.strip()}
    assert not brace or rest.endswith("}"), "no closing brace"
    for pair in filter(None, rest.removesuffix("}").split(",")):
        label, equals, value = pair.partition("=")
        assert equals, f"no value: {pair!r}"
        assert re.fullmatch(r"[a-zA-Z0-9_.]+", label.strip()), f"invalid label name: {label!r}"
        assert label.strip() not in labels, "a label twice"
        assert "}" not in value, "a value ended early"
        labels[label.strip()] = value.strip()
    return labels


# ── faults ──────────────────────────────────────────────────────────────────────────────────────────────


def status(
    code: int, body: bytes = b"", headers: Mapping[str, str] | None = None
) -> Callable[[Handler], None]:
    """Return a fault that reads the whole request and responds with the status ``code``."""

    def act(handler: Handler) -> None:
        handler.body()
        handler.answer(code, body, **(headers or {}))

    return act


def refused_unread(handler: Handler) -> None:
    """Send 413 before reading the body, and disconnect."""
    handler.answer(413, b"too large")
    handler.close_connection = True


def silent(handler: Handler) -> None:
    """Read the request and never respond."""
    handler.body()
    handler.server.receiver.ended.wait(60)


def trickled(handler: Handler) -> None:
    """Send status 200 and an endless response body, one byte at a time."""
    handler.body()
    handler.wfile.write(
        b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 100000\r\n\r\n"
    )
    _slowly(handler, lambda: handler.wfile.write(b"x"))


def trickled_refusal(handler: Handler) -> None:
    """Send 503 with an endless body."""
    handler.body()
    handler.wfile.write(b"HTTP/1.1 503 Later\r\nContent-Length: 100000\r\n\r\n")
    _slowly(handler, lambda: handler.wfile.write(b"x"))


def page(handler: Handler) -> None:
    """Send an HTML response, as Parca does for unknown paths; the body is empty."""
    handler.body()
    handler.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 0\r\n\r\n")


def trickled_status(handler: Handler) -> None:
    """Send an endless status line."""
    handler.body()
    handler.wfile.write(b"HTTP/1.1 ")
    _slowly(handler, lambda: handler.wfile.write(b"x"))


def read_slowly(handler: Handler) -> None:
    """Read the request one byte at a time."""
    _slowly(handler, lambda: handler.rfile.read1(1))


def _slowly(handler: Handler, step: Callable[[], object]) -> None:
    while not handler.server.receiver.ended.wait(0.02):
        try:
            step()
        except OSError:
            return


def reset(handler: Handler) -> None:
    """Reset the connection in the middle of the request."""
    handler.rfile.read1(100)
    handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    handler.connection.close()
    handler.close_connection = True


def no_http(handler: Handler) -> None:
    """Respond with another protocol."""
    handler.body()
    handler.wfile.write(b"220 mail.example.net ESMTP\r\n")
    handler.close_connection = True


def hung_up(handler: Handler) -> None:
    """Read the request and disconnect."""
    handler.body()
    handler.close_connection = True
