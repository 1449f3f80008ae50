"""Send one HTTP request to a receiver within a deadline, and interpret its response."""

from __future__ import annotations

import base64
import email.utils
import http.client
import socket
import ssl
import threading
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from innoscope import __version__
from innoscope.common import sanitize
from innoscope.common.errors import BadFile
from innoscope.daemon.push.errors import PushFailed

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from innoscope.daemon.push.formats import PushRequest
    from innoscope.daemon.push.settings import Push, Receiver

#: Maximum number of bytes that are read from an error response.
_MAX_BODY: Final = 65_536
#: Maximum number of characters of an error response that are logged.
_MAX_LOGGED: Final = 200
_MAX_SECRET: Final = 65_536
#: Maximum delay in seconds that a Retry-After header can request.
_MAX_WAIT_S: Final = 600.0

#: HTTP status -> (reason, whether to retry). Other 4xx statuses are "refused", other 5xx are "unavailable".
_STATUSES: Final = {
    401: ("auth", False),
    403: ("auth", False),
    408: ("timeout", True),
    413: ("too_large", False),
    500: ("error", True),
    429: ("busy", True),
}
#: Remedies by reason. ``{section}`` is the section of agent.toml.
_REMEDIES: Final = {
    "auth": "check {section}.bearer_token_file or {section}.basic_auth_file",
    "too_large": "raise the receiver's limit",
    "busy": "raise the receiver's limit",
    "redirect": "set {section}.url to the redirect's target: redirects are not followed",
    "refused": "see the receiver's log; check {section}.url",
    "error": "see the receiver's log",
    "unavailable": "none needed: the request is repeated automatically",
    "timeout": "none needed: the request is repeated automatically; {section}.timeout_seconds is the limit",
}
_PUSH_REMEDIES: Final = _REMEDIES | {
    "auth": "check push.bearer_token_file or push.basic_auth_file, and push.tenant",
    "too_large": "decrease push.interval_seconds, or raise the receiver's limit",
    "busy": "increase push.interval_seconds, or raise the receiver's limit",
    "refused": "see the receiver's log; check that push.url and push.kind match",
    "unavailable": "none needed: the push is retried automatically",
    "timeout": "none needed: the push is retried automatically; push.timeout_seconds is the limit",
}


class _Deadline:
    """Shuts a connection down at a deadline, because socket timeouts limit only single reads and writes."""

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds
        self._timer = threading.Timer(seconds, self._expire)
        self._timer.daemon = True
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self.expired = False

    def __enter__(self) -> _Deadline:
        self._timer.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()

    @property
    def left(self) -> float:
        """Return the remaining seconds, but at least 0.001: a timeout of 0 makes a socket non-blocking."""
        return max(0.001, self._end - time.monotonic())

    def guard(self, wire: socket.socket) -> None:
        """Set the socket that is shut down at the deadline."""
        with self._lock:
            self._socket = wire
            if self.expired:
                self._shut_down()

    def _expire(self) -> None:
        with self._lock:
            self.expired = True
            self._shut_down()

    def _shut_down(self) -> None:
        if self._socket is not None:
            with suppress(OSError):  # not SSLSocket.shutdown, which drops the TLS state while a thread reads
                socket.socket.shutdown(self._socket, socket.SHUT_RDWR)


class _Connection(http.client.HTTPConnection):
    """A connection whose deadline also covers connecting and the TLS handshake."""

    def __init__(self, host: str, port: int, deadline: _Deadline, tls: ssl.SSLContext | None) -> None:
        super().__init__(host, port)
        self._deadline, self._tls = deadline, tls

    def connect(self) -> None:
        """Connect to the first address of the host that accepts a connection."""
        found = socket.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM)
        for place, (family, kind, protocol, _, address) in enumerate(found):
            wire = socket.socket(family, kind, protocol)
            wire.settimeout(self._deadline.left)
            self._deadline.guard(wire)
            try:
                wire.connect(address)
                self.sock = self._with_tls(wire) if self._tls else wire
                return
            except OSError as error:
                wire.close()
                if isinstance(error, ssl.SSLError) or place == len(found) - 1 or self._deadline.expired:
                    raise

    def _with_tls(self, wire: socket.socket) -> ssl.SSLSocket:
        assert self._tls is not None  # noqa: S101
        tls_wire = self._tls.wrap_socket(wire, server_hostname=self.host, do_handshake_on_connect=False)
        self._deadline.guard(tls_wire)
        try:
            tls_wire.do_handshake()
        except BaseException:
            tls_wire.close()
            raise
        return tls_wire


class HttpSender:
    """Sends requests to one receiver, whose settings are the section ``section`` of agent.toml.

    ``what`` names what is sent. Secrets are read from their files for each request, and never appear in
    messages.
    """

    def __init__(
        self,
        receiver: Receiver,
        section: str,
        what: str,
        remedies: Mapping[str, str] = _REMEDIES,
        headers: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self._receiver, self._section, self._what = receiver, section, what
        self._remedies = {reason: text.format(section=section) for reason, text in remedies.items()}
        self._headers = {**receiver.headers, **headers}

    def post(self, request: PushRequest, timeout_s: float | None = None) -> http.client.HTTPMessage:
        """Send a request, and return the headers of the response. Raise PushFailed if it is not accepted."""
        authorization, secrets = self._authorization()
        with _Deadline(timeout_s or self._receiver.timeout_seconds) as deadline, self._explained(deadline):
            status, headers, body = self._exchange(request, deadline, authorization)
        if not 200 <= status < 300:
            raise self._status_error(status, headers, _loggable(body, secrets))
        return headers

    def check(self) -> None:
        """Check that the configured files can be read. Raise BadFile if one cannot."""
        try:
            self._authorization()
            self._tls()
        except PushFailed as error:
            raise BadFile(error.what, remedy=error.remedy) from error

    def _exchange(
        self, request: PushRequest, deadline: _Deadline, authorization: str | None
    ) -> tuple[int, http.client.HTTPMessage, bytes]:
        target = self._receiver.target
        tls = self._tls() if target.scheme == "https" else None
        connection = _Connection(target.hostname or "", target.port or (443 if tls else 80), deadline, tls)
        headers = {
            **self._headers,
            "User-Agent": f"innoscope/{__version__}",
            "Content-Type": request.content_type,
            "Accept": "application/json",
            "Connection": "close",
        }
        if authorization is not None:
            headers["Authorization"] = authorization
        try:
            try:
                connection.request("POST", request.target, request.body, headers)
            except (BrokenPipeError, ConnectionResetError):
                if connection.sock is None:
                    raise
                # the receiver may have sent a status (413, 401) before closing the connection
            response = connection.getresponse()
            return response.status, response.headers, _error_body(response)
        finally:
            connection.close()

    def _tls(self) -> ssl.SSLContext:
        receiver = self._receiver
        try:
            context = ssl.create_default_context(cafile=receiver.ca_file)
            if receiver.cert_file is not None:
                context.load_cert_chain(receiver.cert_file, receiver.key_file)
        except OSError as error:
            raise PushFailed(
                "file",
                f"cannot use ca_file, cert_file or key_file of [{self._section}]: {error.strerror or error}",
                remedy="openssl x509 -noout -text -in FILE",
            ) from error
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        return context

    def _authorization(self) -> tuple[str | None, tuple[str, ...]]:
        """Return the Authorization header, and the secrets in it that must not be logged."""
        receiver = self._receiver
        if receiver.bearer_token_file is not None:
            token = self._secret(receiver.bearer_token_file)
            return f"Bearer {token}", (token,)
        if receiver.basic_auth_file is not None:
            pair = self._secret(receiver.basic_auth_file)
            coded = base64.b64encode(pair.encode()).decode("ascii")
            return f"Basic {coded}", (coded, pair, pair.partition(":")[2])
        return None, ()

    def _secret(self, file: str) -> str:
        try:
            return secret(Path(file))
        except (OSError, ValueError) as error:
            words = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            raise PushFailed("file", f"cannot use {file}: {words}", remedy=f"ls -l {file}") from error

    @contextmanager
    def _explained(self, deadline: _Deadline) -> Iterator[None]:
        """Convert network errors to PushFailed. After the deadline, any error is a timeout."""
        try:
            yield
        except PushFailed:
            raise
        except (OSError, http.client.HTTPException, ValueError) as error:
            if deadline.expired or isinstance(error, TimeoutError):
                what = f"{self.where} did not accept {self._what} within {self._receiver.timeout_seconds:g} s"
                raise PushFailed("timeout", what, remedy=self._remedies["timeout"]) from error
            raise self._network_error(error) from error

    def _network_error(self, error: Exception) -> PushFailed:
        if isinstance(error, ssl.SSLError):
            words = getattr(error, "verify_message", "") or error.reason or str(error)
            return PushFailed(
                "tls",
                f"TLS with {self.where} failed: {words}",
                remedy=f"set {self._section}.ca_file if a private CA issued the certificate",
            )
        if isinstance(error, socket.gaierror):
            host = self._receiver.target.hostname
            what = f"cannot resolve {host}: {error.strerror}"
            return PushFailed("dns", what, remedy=f"getent hosts {host}")
        if isinstance(error, OSError):
            what = f"cannot connect to {self.where}: {error.strerror or error}"
            return PushFailed("connection", what, remedy="check that it is running and reachable")
        what = f"{self.where} sent a malformed HTTP response: {type(error).__name__}"
        return PushFailed("protocol", what, remedy=f"check {self._section}.url")

    def _status_error(self, status: int, headers: http.client.HTTPMessage, words: str) -> PushFailed:
        if 300 <= status < 400:
            reason, again = "redirect", False
        elif status in _STATUSES:
            reason, again = _STATUSES[status]
        else:
            reason, again = ("unavailable", True) if status >= 500 else ("refused", False)
        what = f"{self.where} answered {status}" + (f": {words}" if words else "")
        after_s = retry_after(headers.get("Retry-After"), time.time()) if again else 0.0
        return PushFailed(reason, what, remedy=self._remedies[reason], again=again, after_s=after_s)

    @property
    def where(self) -> str:
        """Return the receiver's URL, for messages."""
        target = self._receiver.target
        return f"{target.scheme}://{target.netloc}{target.path}"


class PushClient:
    """Sends profiles."""

    def __init__(self, push: Push) -> None:
        tenant = {"X-Scope-OrgID": push.tenant} if push.tenant is not None else {}
        self._kind = push.kind
        self._sender = HttpSender(push, "push", "the profile", _PUSH_REMEDIES, tenant)

    def post(self, request: PushRequest, timeout_s: float | None = None) -> None:
        """Send a profile, and wait until the receiver accepts it. Raise PushFailed if it does not."""
        headers = self._sender.post(request, timeout_s)
        if self._kind == "parca" and headers.get_content_type() != "application/json":
            what = f"{self._sender.where} accepted the request, but it is not Parca's JSON gateway"
            remedy = "set push.url to Parca's address, or to the full path of its gateway"
            raise PushFailed("protocol", what, remedy=remedy, again=False)

    def check(self) -> None:
        """Check that the configured files can be read. Raise BadFile if one cannot."""
        self._sender.check()


def secret(path: Path) -> str:
    """Return the secret in a file. Raise OSError, or ValueError if the file is not one line of ASCII."""
    with path.open("rb") as file:
        text = file.read(_MAX_SECRET).decode().strip()
    if not text or not text.isprintable() or not text.isascii():
        raise ValueError("not one line of ASCII")
    return text


def retry_after(header: str | None, now: float) -> float:
    """Return the delay that a Retry-After header (RFC 9110) requests, at most 600 s; 0 s if malformed."""
    if header is None:
        return 0.0
    if header.strip().isdecimal():
        seconds = float(header)
    else:
        try:
            seconds = email.utils.parsedate_to_datetime(header).timestamp() - now
        except (ValueError, OverflowError):
            return 0.0
    return min(max(0.0, seconds), _MAX_WAIT_S)


def _error_body(response: http.client.HTTPResponse) -> bytes:
    """Read the body of an error response. Return b"" for a success, or if the body cannot be read."""
    if 200 <= response.status < 300:
        return b""
    try:
        return response.read(_MAX_BODY)
    except (OSError, ValueError, http.client.HTTPException):
        return b""


def _loggable(body: bytes, secrets: tuple[str, ...]) -> str:
    """Return the start of a response on one line, for the log, with secrets replaced."""
    text = body.decode("utf-8", "replace")
    for hidden in secrets:
        if hidden:
            text = text.replace(hidden, "…")
    return sanitize.words(text, _MAX_LOGGED)
