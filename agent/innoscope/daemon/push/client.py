"""Send one HTTP request to a receiver within a deadline, and interpret its response."""

from __future__ import annotations

import base64
import email.utils
import http.client
import socket
import ssl
import time
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, ClassVar, Final, NamedTuple

from innoscope import __version__
from innoscope.common import sanitize
from innoscope.common.errors import BadFile
from innoscope.daemon.push.connection import Deadline, HttpConnection
from innoscope.daemon.push.errors import PushFailed
from innoscope.daemon.push.formats import PushRequest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from innoscope.daemon.push.settings import Push, Receiver

#: Maximum number of bytes that are read from a response.
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


class HttpAnswer(NamedTuple):
    """The response to an accepted request. ``body`` is empty unless the sender reads it."""

    headers: http.client.HTTPMessage
    body: bytes


class HttpSender:
    """Sends requests to one receiver, which is configured in the section ``section`` of agent.toml.

    ``what`` names what is sent. Secrets are read from their files for each request, and never appear in
    messages. ``sign`` replaces the credentials of the receiver's settings: it returns the headers of a
    request and the secrets in them.
    """

    #: The only statuses after which a request is retried; None if ``_STATUSES`` defines them.
    retried: ClassVar[frozenset[int] | None] = None
    #: Whether ``post`` returns the body of the response.
    reads_body: ClassVar[bool] = False

    def __init__(
        self,
        receiver: Receiver,
        section: str,
        what: str,
        remedies: Mapping[str, str] = _REMEDIES,
        headers: Mapping[str, str] = MappingProxyType({}),
        sign: Callable[[PushRequest], tuple[Mapping[str, str], tuple[str, ...]]] | None = None,
    ) -> None:
        self._receiver, self._section, self._what = receiver, section, what
        self._remedies = {reason: text.format(section=section) for reason, text in remedies.items()}
        self._headers = {**receiver.headers, **headers}
        self._sign = sign

    def post(self, request: PushRequest, timeout_s: float | None = None) -> HttpAnswer:
        """Send a request, and return the response.

        Raise PushFailed if the request fails or is not accepted.
        """
        authorization, secrets = self._authorization(request)
        with Deadline(timeout_s or self._receiver.timeout_seconds) as deadline, self._explained(deadline):
            status, headers, body = self._exchange(request, deadline, authorization)
        if not 200 <= status < 300:
            raise self._status_error(status, headers, _loggable(body, secrets))
        return HttpAnswer(headers, body)

    def check(self) -> None:
        """Check that the configured files can be used. Raise BadFile if a file is unusable."""
        try:
            self._authorization(PushRequest(self._receiver.target.path, "", b""))
            self._tls()
        except PushFailed as error:
            raise BadFile(error.what, remedy=error.remedy) from error

    def _exchange(
        self, request: PushRequest, deadline: Deadline, authorization: Mapping[str, str]
    ) -> tuple[int, http.client.HTTPMessage, bytes]:
        target = self._receiver.target
        tls = self._tls() if target.scheme == "https" else None
        connection = HttpConnection(target.hostname or "", target.port or (443 if tls else 80), deadline, tls)
        headers = {
            **self._headers,
            "User-Agent": f"innoscope/{__version__}",
            "Content-Type": request.content_type,
            "Accept": "application/json",
            "Connection": "close",
            **authorization,
        }
        try:
            try:
                connection.request(request.method, request.target, request.body, headers)
            except (BrokenPipeError, ConnectionResetError):
                if connection.sock is None:
                    raise
                # the receiver may have sent a status (413, 401) before closing the connection
            response = connection.getresponse()
            is_read = self.reads_body or not 200 <= response.status < 300
            return response.status, response.headers, _body(response) if is_read else b""
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

    def _authorization(self, request: PushRequest) -> tuple[Mapping[str, str], tuple[str, ...]]:
        """Return the headers with credentials, and the secrets in them that must not be logged."""
        receiver = self._receiver
        if self._sign is not None:
            return self._sign(request)
        if receiver.bearer_token_file is not None:
            token = read_secret(receiver.bearer_token_file)
            return {"Authorization": f"Bearer {token}"}, (token,)
        if receiver.basic_auth_file is not None:
            pair = read_secret(receiver.basic_auth_file)
            coded = base64.b64encode(pair.encode()).decode("ascii")
            return {"Authorization": f"Basic {coded}"}, (coded, pair, pair.partition(":")[2])
        return {}, ()

    @contextmanager
    def _explained(self, deadline: Deadline) -> Iterator[None]:
        """Convert network errors to PushFailed. After the deadline, all of them count as timeouts."""
        try:
            yield
        except PushFailed:
            raise
        except (OSError, http.client.HTTPException, ValueError) as error:
            if deadline.expired or isinstance(error, TimeoutError):
                what = f"{self.where} did not accept {self._what} within {deadline.seconds:.3g} s"
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
        if self.retried is not None:
            again = status in self.retried
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
        """Send a profile. Raise PushFailed if the request fails or the receiver does not accept it."""
        headers = self._sender.post(request, timeout_s).headers
        if self._kind == "parca" and headers.get_content_type() != "application/json":
            what = f"{self._sender.where} accepted the request, but it is not Parca's JSON gateway"
            remedy = "set push.url to Parca's address, or to the full path of its gateway"
            raise PushFailed("protocol", what, remedy=remedy, again=False)

    def check(self) -> None:
        """Check that the configured files can be used. Raise BadFile if a file is unusable."""
        self._sender.check()


def read_secret(file: str) -> str:
    """Return the secret in a file. Raise PushFailed if the file cannot be used."""
    try:
        return secret(Path(file))
    except (OSError, ValueError) as error:
        words = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise PushFailed("file", f"cannot use {file}: {words}", remedy=f"ls -l {file}") from error


def secret(path: Path) -> str:
    """Return the secret in a file.

    Raise OSError if the file cannot be read, or ValueError if it is not one line of ASCII.
    """
    with path.open("rb") as file:
        text = file.read(_MAX_SECRET).decode().strip()
    if not text or not text.isprintable() or not text.isascii():
        raise ValueError("not one line of ASCII")
    return text


def retry_after(header: str | None, now: float) -> float:
    """Return the delay in seconds that a Retry-After header (RFC 9110) requests, at most 600.

    Return 0 if the header is missing or malformed.
    """
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


def _body(response: http.client.HTTPResponse) -> bytes:
    """Read the body of a response. Return b"" if it cannot be read."""
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
