"""The HTTP server: a thread for each connection, bounded, and no client can keep others out."""

from __future__ import annotations

import contextlib
import ipaddress
import logging
import socket
import threading
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qsl, urlsplit

from innoscope.errors import BadFile
from innoscope.exporter.auth import Verifier
from innoscope.exporter.connections import Connections

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from email.message import Message

    from innoscope.exporter.connections import Slot
    from innoscope.exporter.webconfig import Watched, WebConfig

_log = logging.getLogger(__name__)

#: Seconds that a client may take to send a request or to take an answer. Prometheus scrapes every 15 to 60 s
#: over the same connection: in between it may be silent for longer than that.
_SLOWEST: Final = 10
_SILENT: Final = 75
_BACKLOG: Final = 64
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


def plain(text: str, status: HTTPStatus = HTTPStatus.OK) -> Response:
    """A line of text."""
    return Response(f"{text}\n".encode(), status=status)


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


class WebServer:
    """Listens from the moment it is made. ``routes`` are by path; what they raise is a 500."""

    def __init__(
        self, address: Address, routes: Mapping[str, Callable[[Request], Response]], watched: Watched
    ) -> None:
        self._listener = _listen(address)
        host, self.port = self._listener.getsockname()[:2]
        self.address = Address(host, self.port)
        self.local = ipaddress.ip_address(host).is_loopback
        self.routes = routes
        self.watched = watched
        self.verifier = Verifier()
        self.connections = Connections()
        self._stopping = threading.Event()

    def serve(self) -> None:
        """Answer until ``stop``."""
        while not self._stopping.is_set():
            try:
                connection, client = self._listener.accept()
            except OSError as error:
                if self._stopping.is_set():
                    return
                _log.warning("cannot accept a connection", extra={"error": error.strerror})
                self._stopping.wait(0.1)  # out of descriptors: give those in use time to end
                continue
            slot = self.connections.add(connection)
            threading.Thread(target=self._handle, args=(slot, client), name="http", daemon=True).start()

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
                slot.socket = context.wrap_socket(slot.socket, server_side=True)
            _Handler(slot, client, self, config)
        except (OSError, ValueError) as error:  # the client went away, was too slow, or speaks no TLS
            _log.debug("connection ended", extra={"client": str(client[0]), "error": str(error)})
        finally:
            self.connections.remove(slot)
            slot.socket.close()


class _Handler(BaseHTTPRequestHandler):
    """One connection; all its requests."""

    protocol_version = "HTTP/1.1"
    server_version = "innoscope"
    sys_version = ""

    def __init__(self, slot: Slot, client: Any, web: WebServer, config: WebConfig) -> None:
        self.slot, self.web, self.config = slot, web, config
        super().__init__(slot.socket, client, web)  # type: ignore[arg-type]

    def handle_one_request(self) -> None:
        self.connection.settimeout(_SILENT)
        super().handle_one_request()

    def parse_request(self) -> bool:
        self.connection.settimeout(_SLOWEST)
        return super().parse_request()

    def do_GET(self) -> None:
        with self.web.connections.answering(self.slot):
            self._send(self._answer())

    do_HEAD = do_GET

    def _answer(self) -> Response:
        config = self.web.watched.current()[0]
        if not self.web.verifier.admits(self.headers.get("Authorization"), config.users):
            return Response(
                b"user and password are needed\n",
                status=HTTPStatus.UNAUTHORIZED,
                headers={"WWW-Authenticate": "Basic"},
            )
        url = urlsplit(self.path)
        route = self.web.routes.get(url.path)
        if route is None:
            return plain("no such page; / has links to those that there are", HTTPStatus.NOT_FOUND)
        trusted = config.authenticates or (self.web.local and _is_local(self.headers.get("Host", "")))
        try:
            query = dict(parse_qsl(url.query, keep_blank_values=True, max_num_fields=20))
            return route(Request(url.path, query, self.headers, trusted))
        except Exception:
            _log.exception("request failed", extra={"path": url.path})
            return plain("internal error, see the log", HTTPStatus.INTERNAL_SERVER_ERROR)

    def _send(self, response: Response) -> None:
        if "Content-Length" in self.headers or "Transfer-Encoding" in self.headers:
            self.close_connection = True  # a body that we do not read would be taken for the next request
        self.send_response(response.status)
        self.send_header("Content-Type", response.content_type)
        self.send_header("Content-Length", str(len(response.body)))
        self.send_header("X-Content-Type-Options", "nosniff")
        for name, value in {**response.headers, **self.config.headers}.items():
            if name != "X-Content-Type-Options":
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
