"""The HTTP server: one thread per connection, and a connection limit that clients share fairly."""

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

from innoscope.common import sanitize
from innoscope.common.errors import BadFile
from innoscope.daemon.http import request_parser
from innoscope.daemon.http.audit import AuditLog
from innoscope.daemon.http.auth import TooManyGuesses, Verifier, parse
from innoscope.daemon.http.connections import Connections, client_of
from innoscope.daemon.http.overload import ExpensiveResponses, Overloaded
from innoscope.daemon.http.roles import Client, Role, certificate_names

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from innoscope.common.supervision import Beat
    from innoscope.daemon.http.connections import OpenConnection
    from innoscope.daemon.http.web_config import Watched, WebConfig

_log = logging.getLogger(__name__)

#: Timeout in seconds for receiving a request, including the TLS handshake.
_REQUEST_S: Final = 10
#: Timeout in seconds for generating and sending a response.
_RESPONSE_S: Final = 30
#: Seconds after which a request counts as hung. After ``_RESPONSE_S`` the connection is closed, which ends a
#: thread that is sending a response, but not one that is still generating it.
_HUNG_S: Final = 90
#: Maximum idle time of a connection in seconds. Prometheus reuses its connection if it scrapes more often.
_IDLE_S: Final = 75
#: Pause in seconds between requests on one connection while many are open, so that no client hogs the CPU.
_PAUSE_S: Final = 0.25
#: Seconds between checks for expired connections.
_SWEEP_S: Final = 1.0
#: Length of the kernel's accept queue. A thousand simultaneous connections must not crowd out Prometheus.
_BACKLOG: Final = 1024
#: Responses for paths with this prefix are expensive to generate; all others are cached or shared.
_EXPENSIVE: Final = "/api/"
_RETRY_AFTER_S: Final = "2"
#: Headers that a proxy adds. If one is present, the client may be remote although the proxy is local.
_FORWARDED: Final = ("Forwarded", "Via", "X-Forwarded-For", "X-Real-IP")
TEXT: Final = "text/plain; charset=utf-8"
HTML: Final = "text/html; charset=utf-8"


@dataclass(frozen=True, slots=True)
class Request:
    """An HTTP request. ``client`` determines which data may be served."""

    path: str
    query: Mapping[str, str]
    headers: Message
    client: Client


@dataclass(frozen=True, slots=True)
class Response:
    """An HTTP response. ``headers`` are sent in addition to the headers of all responses."""

    body: bytes
    content_type: str = TEXT
    status: HTTPStatus = HTTPStatus.OK
    headers: Mapping[str, str] = field(default_factory=dict)


def plain(
    text: str, status: HTTPStatus = HTTPStatus.OK, headers: Mapping[str, str] | None = None
) -> Response:
    """Return a response with one line of plain text."""
    return plain_lines((text,), status, headers)


def plain_lines(
    lines: Iterable[str], status: HTTPStatus = HTTPStatus.OK, headers: Mapping[str, str] | None = None
) -> Response:
    """Return a response with lines of plain text, sanitized, because curl writes them to a terminal."""
    text = "".join(f"{sanitize.line(line)}\n" for line in lines)
    return Response(text.encode(), status=status, headers=headers or {})


def _retry_later(text: str, status: HTTPStatus) -> Response:
    return plain(text, status, {"Retry-After": _RETRY_AFTER_S})


@dataclass(frozen=True, slots=True)
class ListenAddress:
    """An address to listen on: ``127.0.0.1:9977``, ``[::1]:9977``, ``:9977`` (all interfaces)."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> ListenAddress:
        """Parse an address. Raise BadFile if it is malformed."""
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


#: Headers of every response: no content type sniffing, no access from other origins.
_HEADERS: Final[Mapping[str, str]] = {
    "X-Content-Type-Options": "nosniff",
    "Cross-Origin-Resource-Policy": "same-origin",
}


class WebServer:
    """The HTTP server. ``routes`` maps paths to handlers.

    The constructor opens the listening socket. It raises BadFile if that fails.
    """

    def __init__(
        self, address: ListenAddress, routes: Mapping[str, Callable[[Request], Response]], watched: Watched
    ) -> None:
        self._listener = _listen(address)
        self._listener.settimeout(_SWEEP_S)
        host, self.port = self._listener.getsockname()[:2]
        self.address = ListenAddress(host, self.port)
        self.local = ipaddress.ip_address(host).is_loopback
        self.routes = routes
        self.watched = watched
        self.verifier = Verifier()
        self.connections = Connections()
        self.expensive = ExpensiveResponses()
        self.audit = AuditLog()
        self._stopping = threading.Event()

    def serve(self, beat: Beat = lambda: None) -> None:
        """Accept connections until ``stop`` is called. Send no heartbeats while a request hangs.

        A hung request may block all other expensive requests. Without heartbeats, systemd restarts the agent.
        """
        swept = time.monotonic()
        while not self._stopping.is_set():
            if self.connections.longest_s() < _HUNG_S:
                beat()
            if time.monotonic() - swept >= _SWEEP_S:
                self.connections.end_expired()
                self.audit.flush()
                swept = time.monotonic()
            try:
                wire, client = self._listener.accept()
            except TimeoutError:
                continue
            except OSError as error:
                if self._stopping.is_set():
                    return
                _log.warning("cannot accept a connection", extra={"error": error.strerror})
                self._stopping.wait(0.1)  # for example, out of file descriptors: wait until others end
                continue
            opened = self.connections.add(wire, client_of(client[0]), _REQUEST_S)
            try:
                threading.Thread(target=self._handle, args=(opened, client), name="http", daemon=True).start()
            except (RuntimeError, MemoryError):  # no thread can be started, for example at TasksMax
                self.connections.remove(opened)
                wire.close()
                self._stopping.wait(0.01)

    def stop(self) -> None:
        """Stop listening, which ends ``serve``, and close all connections."""
        self._stopping.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes accept()
        self._listener.close()
        self.connections.close_all()
        self.audit.flush(everything=True)

    def _handle(self, opened: OpenConnection, client: Any) -> None:
        try:
            opened.socket.settimeout(_REQUEST_S)
            config, context = self.watched.current()
            if context is not None:
                opened.socket = context.wrap_socket(
                    opened.socket, server_side=True, do_handshake_on_connect=False
                )
                if opened.ended.is_set():  # ended before the TLS socket replaced the plain one
                    return
                opened.socket.do_handshake()
            _Handler(opened, client, self, config)
        except (OSError, ValueError) as error:  # the client disconnected, was too slow, or does not use TLS
            _log.debug("connection ended", extra={"client": str(client[0]), "error": str(error)})
        finally:
            self.connections.remove(opened)
            opened.socket.close()


class _Handler(BaseHTTPRequestHandler):
    """Handles all requests on one connection."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # otherwise each response waits up to 40 ms for the client's delayed ACK
    server_version = "innoscope"
    sys_version = ""

    raw_requestline: bytes

    def __init__(self, opened: OpenConnection, client: Any, web: WebServer, config: WebConfig) -> None:
        self.opened, self.web, self.config = opened, web, config
        super().__init__(opened.socket, client, web)  # type: ignore[arg-type]

    def handle_one_request(self) -> None:
        super().handle_one_request()
        self.opened.set_deadline(_IDLE_S)
        self.connection.settimeout(_IDLE_S)
        if self.web.connections.crowded:
            self.opened.ended.wait(_PAUSE_S)

    def parse_request(self) -> bool:
        """Check the request strictly, then let the library parse it. If it is rejected, send an error."""
        self._reset()
        self.opened.set_deadline(_REQUEST_S)
        self.connection.settimeout(_REQUEST_S)
        wire = self.rfile
        try:
            request_parser.check_line(self.raw_requestline)
            lines = request_parser.read(wire, needs_host=self.raw_requestline.endswith(b"1.1\r\n"))
            self.rfile = io.BytesIO(lines)
            return super().parse_request()
        except request_parser.RequestRejected as refused:
            self._reset()
            self._send(plain(refused.reason, refused.status, {"Allow": ", ".join(request_parser.METHODS)}))
            return False
        finally:
            self.rfile = wire

    def handle_expect_100(self) -> bool:
        """Do not send 100 Continue: requests have no body, so the final response follows immediately."""
        return True

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Reject a request that the library could not parse. The response does not quote the request."""
        self._reset()
        self._send(plain(HTTPStatus(code).phrase, HTTPStatus(code)))

    def _reset(self) -> None:
        """Reset the state of the request. The connection is closed afterwards, unless parsing succeeds."""
        self.requestline, self.request_version, self.command = "", "HTTP/1.1", "GET"
        self.headers = Message()
        self.close_connection = True

    def do_GET(self) -> None:
        self.opened.set_deadline(_RESPONSE_S)
        with self.web.connections.answering(self.opened):
            response, expensive = self._answer()
            if not expensive:
                self._send(response)
                return
            try:
                with self.web.expensive.sending(len(response.body)):
                    self._send(response)
            except Overloaded:
                self._send(
                    _retry_later("too many unsent responses: try again", HTTPStatus.SERVICE_UNAVAILABLE)
                )

    do_HEAD = do_GET

    def _answer(self) -> tuple[Response, bool]:
        """Return the response, and whether it was expensive to generate."""
        config = self.web.watched.current()[0]
        try:
            admitted = self.web.verifier.admits(
                self.headers.get("Authorization"), config.users, self.opened.client
            )
        except TooManyGuesses:
            return _retry_later("too many unknown passwords: try again", HTTPStatus.TOO_MANY_REQUESTS), False
        if not admitted:
            return plain(
                "user and password required", HTTPStatus.UNAUTHORIZED, {"WWW-Authenticate": "Basic"}
            ), False
        path, _, query = self.path.partition("?")
        route = self.web.routes.get(path)
        if route is None:
            return plain("no such page; / has links to all pages", HTTPStatus.NOT_FOUND), False
        try:
            fields = dict(parse_qsl(query, keep_blank_values=True, max_num_fields=20))
        except ValueError:
            return plain("too many query fields: at most 20", HTTPStatus.BAD_REQUEST), False
        request = Request(path, fields, self.headers, self._client(config))
        try:
            if not path.startswith(_EXPENSIVE):
                return route(request), False
            with self.web.expensive.generating():
                response = route(request)
            self._audit(request, response)
            return response, True
        except Overloaded:
            return _retry_later("too many requests: try again", HTTPStatus.SERVICE_UNAVAILABLE), False
        except Exception:
            _log.exception("request failed", extra={"path": path})
            return plain("internal error, see the log", HTTPStatus.INTERNAL_SERVER_ERROR), False

    def _client(self, config: WebConfig) -> Client:
        """Return the client: its role and, if it is authenticated, its name."""
        account = parse(self.headers.get("Authorization")) if config.users else None
        user = account[0] if account is not None else None
        names = certificate_names(self.connection)
        listed = any(name in config.roles.certificates for name in names)
        if config.authenticates or listed:
            name = user if user is not None else next(iter(names), "authenticated")
            return Client(config.roles.of(user, names), name)
        forwarded = any(name in self.headers for name in _FORWARDED)
        local = self.web.local and not forwarded and _is_local(self.headers.get("Host", ""))
        return Client(Role.STACKS if local else Role.METRICS)

    def _audit(self, request: Request, response: Response) -> None:
        if response.status is HTTPStatus.OK and self.command != "HEAD":
            address = str(self.client_address[0])
            self.web.audit.add(request.client.name, address, request.path, request.query, len(response.body))

    def _send(self, response: Response) -> None:
        if "Content-Length" in self.headers:
            self.close_connection = True  # the next bytes may be a body
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


def _listen(address: ListenAddress) -> socket.socket:
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
    """Return whether a ``Host`` header names this machine; in a DNS rebinding attack it does not."""
    name = urlsplit(f"//{host}").hostname or ""
    if name == "localhost":
        return True
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(name).is_loopback
    return False
