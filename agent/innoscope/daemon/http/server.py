"""The HTTP server: a thread for each connection, bounded, and no client can keep others out."""

from __future__ import annotations

import contextlib
import io
import ipaddress
import logging
import socket
import threading
import time
from dataclasses import dataclass, field
from email.message import Message
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qsl, urlsplit

from innoscope.common.errors import BadFile
from innoscope.daemon.http import request_parser
from innoscope.daemon.http.admission import Load, TooMuch
from innoscope.daemon.http.auth import TooManyGuesses, Verifier
from innoscope.daemon.http.connections import Connections, counted_as

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from innoscope.common.supervision import Beat
    from innoscope.daemon.http.connections import Slot
    from innoscope.daemon.http.web_config import Watched, WebConfig

_log = logging.getLogger(__name__)

#: Seconds that a client may take to send a request, TLS included, and for its answer to be made and taken.
_SLOWEST: Final = 10
_ANSWERED: Final = 30
#: Prometheus scrapes every 15 to 60 s over the same connection: in between it may be silent for so long.
_SILENT: Final = 75
#: Seconds that a connection rests between two requests in a crowd, so that nobody takes all of our time.
_REST: Final = 0.25
#: Seconds between two looks for who has been too slow.
_SWEEP: Final = 1.0
#: Connections that the kernel holds for us: a thousand at once must not make it drop that of Prometheus.
_BACKLOG: Final = 1024
#: Answers below this path are made of much; all others are made already, or shared.
_DEAR: Final = "/api/"
_AGAIN_S: Final = "2"
#: What a proxy adds. It may be on this host, and who asks it may not.
_FORWARDED: Final = ("Forwarded", "Via", "X-Forwarded-For", "X-Real-IP")
TEXT: Final = "text/plain; charset=utf-8"
HTML: Final = "text/html; charset=utf-8"


@dataclass(frozen=True, slots=True)
class Request:
    """What was asked. ``trusted``: the client proved who it is, or is on this host, where we listen only."""

    path: str
    query: Mapping[str, str]
    headers: Message
    trusted: bool


@dataclass(frozen=True, slots=True)
class Response:
    """What is answered."""

    body: bytes
    content_type: str = TEXT
    status: HTTPStatus = HTTPStatus.OK
    headers: Mapping[str, str] = field(default_factory=dict)


def plain(
    text: str, status: HTTPStatus = HTTPStatus.OK, headers: Mapping[str, str] | None = None
) -> Response:
    """A line of text."""
    return Response(f"{text}\n".encode(), status=status, headers=headers or {})


def _later(text: str, status: HTTPStatus) -> Response:
    return plain(text, status, {"Retry-After": _AGAIN_S})


@dataclass(frozen=True, slots=True)
class Address:
    """Where to listen: ``127.0.0.1:9977``, ``[::1]:9977``, ``:9977`` (everywhere)."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> Address:
        """Raises BadFile when it is no such thing."""
        host, colon, port = text.rpartition(":")
        if (
            not colon
            or not port.isdecimal()
            or int(port) > 65535
            or (":" in host and not host.startswith("["))
        ):
            raise BadFile(
                f"{text!r} is not an address to listen on", remedy="for example 127.0.0.1:9977 or :9977"
            )
        return cls(host.removeprefix("[").removesuffix("]"), int(port))

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


#: In every answer: browsers are to take it for what it says it is, and to show it to no other page.
_HEADERS: Final[Mapping[str, str]] = {
    "X-Content-Type-Options": "nosniff",
    "Cross-Origin-Resource-Policy": "same-origin",
}


class WebServer:
    """Listens from the moment it is made. ``routes`` are by path; what they raise is a 500."""

    def __init__(
        self, address: Address, routes: Mapping[str, Callable[[Request], Response]], watched: Watched
    ) -> None:
        self._listener = _listen(address)
        self._listener.settimeout(_SWEEP)
        host, self.port = self._listener.getsockname()[:2]
        self.address = Address(host, self.port)
        self.local = ipaddress.ip_address(host).is_loopback
        self.routes = routes
        self.watched = watched
        self.verifier = Verifier()
        self.connections = Connections()
        self.load = Load()
        self._stopping = threading.Event()

    def serve(self, beat: Beat = lambda: None) -> None:
        """Answer until ``stop``."""
        swept = time.monotonic()
        while not self._stopping.is_set():
            beat()
            if time.monotonic() - swept >= _SWEEP:
                self.connections.end_the_slow()
                swept = time.monotonic()
            try:
                connection, client = self._listener.accept()
            except TimeoutError:
                continue
            except OSError as error:
                if self._stopping.is_set():
                    return
                _log.warning("cannot accept a connection", extra={"error": error.strerror})
                self._stopping.wait(0.1)  # out of descriptors: give those in use time to end
                continue
            slot = self.connections.add(connection, counted_as(client[0]), _SLOWEST)
            try:
                threading.Thread(target=self._handle, args=(slot, client), name="http", daemon=True).start()
            except (RuntimeError, MemoryError):  # TasksMax is reached: those that were ended are on their way
                self.connections.remove(slot)
                connection.close()
                self._stopping.wait(0.01)

    def stop(self) -> None:
        """Stop listening, which ends ``serve``; answers on their way are cut off."""
        self._stopping.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes accept()
        self._listener.close()
        self.connections.close_all()

    def _handle(self, slot: Slot, client: Any) -> None:
        try:
            slot.socket.settimeout(_SLOWEST)
            config, context = self.watched.current()
            if context is not None:
                slot.socket = context.wrap_socket(
                    slot.socket, server_side=True, do_handshake_on_connect=False
                )
                if slot.ended.is_set():  # before there was this socket, which nobody will end now
                    return
                slot.socket.do_handshake()
            _Handler(slot, client, self, config)
        except (OSError, ValueError) as error:  # the client went away, was too slow, or speaks no TLS
            _log.debug("connection ended", extra={"client": str(client[0]), "error": str(error)})
        finally:
            self.connections.remove(slot)
            slot.socket.close()


class _Handler(BaseHTTPRequestHandler):
    """One connection; all its requests."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # else each answer waits 40 ms for the other side's acknowledgement
    server_version = "innoscope"
    sys_version = ""

    raw_requestline: bytes

    def __init__(self, slot: Slot, client: Any, web: WebServer, config: WebConfig) -> None:
        self.slot, self.web, self.config = slot, web, config
        super().__init__(slot.socket, client, web)  # type: ignore[arg-type]

    def handle_one_request(self) -> None:
        super().handle_one_request()
        self.slot.within(_SILENT)
        self.connection.settimeout(_SILENT)
        if self.web.connections.crowded:
            self.slot.ended.wait(_REST)

    def parse_request(self) -> bool:
        """As the library does, of what was read strictly; a refusal is sent."""
        self._begin()
        self.slot.within(_SLOWEST)
        self.connection.settimeout(_SLOWEST)
        wire = self.rfile
        try:
            request_parser.check_line(self.raw_requestline)
            lines = request_parser.read(wire, needs_host=self.raw_requestline.endswith(b"1.1\r\n"))
            self.rfile = io.BytesIO(lines)
            return super().parse_request()
        except request_parser.Refused as refused:
            self._begin()
            self._send(plain(refused.words, refused.status, {"Allow": ", ".join(request_parser.METHODS)}))
            return False
        finally:
            self.rfile = wire

    def handle_expect_100(self) -> bool:
        """There is no body to go on with: the answer itself comes at once."""
        return True

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """What the library refuses by itself, without a word of what was sent."""
        self._begin()
        self._send(plain(HTTPStatus(code).phrase, HTTPStatus(code)))

    def _begin(self) -> None:
        """Nothing is known of the request, and it is the last one."""
        self.requestline, self.request_version, self.command = "", "HTTP/1.1", "GET"
        self.headers = Message()
        self.close_connection = True

    def do_GET(self) -> None:
        self.slot.within(_ANSWERED)
        with self.web.connections.answering(self.slot):
            response, dear = self._answer()
            if not dear:
                self._send(response)
                return
            try:
                with self.web.load.sending(len(response.body)):
                    self._send(response)
            except TooMuch:
                self._send(_later("answers are not taken: try again", HTTPStatus.SERVICE_UNAVAILABLE))

    do_HEAD = do_GET

    def _answer(self) -> tuple[Response, bool]:
        """What to send, and whether it is dear."""
        config = self.web.watched.current()[0]
        try:
            admitted = self.web.verifier.admits(
                self.headers.get("Authorization"), config.users, self.slot.client
            )
        except TooManyGuesses:
            return _later("too many unknown passwords: try again", HTTPStatus.TOO_MANY_REQUESTS), False
        if not admitted:
            return plain(
                "user and password are needed", HTTPStatus.UNAUTHORIZED, {"WWW-Authenticate": "Basic"}
            ), False
        path, _, query = self.path.partition("?")
        route = self.web.routes.get(path)
        if route is None:
            return plain("no such page; / has links to those that there are", HTTPStatus.NOT_FOUND), False
        try:
            fields = dict(parse_qsl(query, keep_blank_values=True, max_num_fields=20))
        except ValueError:
            return plain("a query has at most 20 fields", HTTPStatus.BAD_REQUEST), False
        request = Request(path, fields, self.headers, self._trusted(config))
        try:
            if not path.startswith(_DEAR):
                return route(request), False
            with self.web.load.making():
                return route(request), True
        except TooMuch:
            return _later("too many ask at once: try again", HTTPStatus.SERVICE_UNAVAILABLE), False
        except Exception:
            _log.exception("request failed", extra={"path": path})
            return plain("internal error, see the log", HTTPStatus.INTERNAL_SERVER_ERROR), False

    def _trusted(self, config: WebConfig) -> bool:
        """Whether the client proved who it is, or is on this host as far as can be told."""
        forwarded = any(name in self.headers for name in _FORWARDED)
        return config.authenticates or (
            self.web.local and not forwarded and _is_local(self.headers.get("Host", ""))
        )

    def _send(self, response: Response) -> None:
        if "Content-Length" in self.headers:
            self.close_connection = True  # who says how long no body is may say more
        headers = {**_HEADERS, **response.headers, **self.config.headers}
        self.send_response(response.status)
        self.send_header("Content-Type", response.content_type)
        self.send_header("Content-Length", str(len(response.body)))
        for name, value in headers.items():
            self.send_header(name, value)
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(response.body)

    def log_message(self, format: str, *args: Any) -> None:
        _log.debug("http", extra={"client": self.client_address[0], "request": format % args})


def _listen(address: Address) -> socket.socket:
    try:
        if not address.host:
            return socket.create_server(
                ("::", address.port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=_BACKLOG
            )
        family, _, _, _, place = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)[0]
        return socket.create_server(place[:2], family=family, backlog=_BACKLOG)
    except OSError as error:
        raise BadFile(
            f"cannot listen on {address}: {error.strerror}", remedy=f"ss -ltnp 'sport = :{address.port}'"
        ) from error


def _is_local(host: str) -> bool:
    """Whether a ``Host`` header names this machine, unlike that of a page whose name leads here."""
    name = urlsplit(f"//{host}").hostname or ""
    if name == "localhost":
        return True
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(name).is_loopback
    return False
