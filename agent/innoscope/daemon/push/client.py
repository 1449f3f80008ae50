"""One HTTP request to the receiver, over in a bounded time whatever it does, and what its answer means."""

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
from typing import TYPE_CHECKING, Final

from innoscope import __version__
from innoscope.common import sanitize
from innoscope.common.errors import BadFile
from innoscope.daemon.push.errors import PushFailed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from innoscope.daemon.push.formats import Posted
    from innoscope.daemon.push.settings import Push

#: How much of an answer is read, and how much of it is told.
_MOST_ANSWER: Final = 65_536
_MOST_WORDS: Final = 200
_LARGEST_SECRET: Final = 65_536
#: Of what a receiver asks us to wait, so much is believed.
_MOST_WAIT_S: Final = 600.0

#: (status, reason, whether to try again). Other 4xx are refusals, other 5xx are outages.
_STATUSES: Final = {
    401: ("auth", False),
    403: ("auth", False),
    408: ("timeout", True),
    413: ("too_large", False),
    500: ("error", True),
    429: ("busy", True),
}
_REMEDIES: Final = {
    "auth": "check push.bearer_token_file or push.basic_auth_file, and push.tenant",
    "too_large": "a shorter push.interval_seconds, or a higher limit at the receiver",
    "busy": "a longer push.interval_seconds, or a higher limit at the receiver",
    "redirect": "set push.url to where it sends us: credentials are not taken along",
    "refused": "the receiver's log has more; push.url and push.kind have to fit together",
    "error": "the receiver's log has more",
    "unavailable": "it is tried again by itself",
    "timeout": "it is tried again by itself; push.timeout_seconds is how long it may take",
}


class _Deadline:
    """Ends a connection when its time is over: each read may be quick, and the answer never end."""

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds
        self._timer = threading.Timer(seconds, self._strike)
        self._timer.daemon = True
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self.struck = False

    def __enter__(self) -> _Deadline:
        self._timer.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()

    @property
    def left(self) -> float:
        """Seconds, never none: a timeout of 0 would mean not to wait at all."""
        return max(0.001, self._end - time.monotonic())

    def guard(self, wire: socket.socket) -> None:
        """This is the socket to be ended."""
        with self._lock:
            self._socket = wire
            if self.struck:
                self._shut()

    def _strike(self) -> None:
        with self._lock:
            self.struck = True
            self._shut()

    def _shut(self) -> None:
        if self._socket is not None:
            with suppress(OSError):  # not SSLSocket.shutdown, which forgets the TLS state under a reader
                socket.socket.shutdown(self._socket, socket.SHUT_RDWR)


class _Connection(http.client.HTTPConnection):
    """A connection that is under the deadline from its first packet on, its TLS handshake included."""

    def __init__(self, host: str, port: int, deadline: _Deadline, tls: ssl.SSLContext | None) -> None:
        super().__init__(host, port)
        self._deadline, self._tls = deadline, tls

    def connect(self) -> None:
        """Connect to the first address of the host that accepts."""
        found = socket.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM)
        for place, (family, kind, protocol, _, address) in enumerate(found):
            wire = socket.socket(family, kind, protocol)
            wire.settimeout(self._deadline.left)
            self._deadline.guard(wire)
            try:
                wire.connect(address)
                self.sock = self._secured(wire) if self._tls else wire
                return
            except OSError as error:
                wire.close()
                if isinstance(error, ssl.SSLError) or place == len(found) - 1 or self._deadline.struck:
                    raise

    def _secured(self, wire: socket.socket) -> ssl.SSLSocket:
        assert self._tls is not None  # noqa: S101
        secured = self._tls.wrap_socket(wire, server_hostname=self.host, do_handshake_on_connect=False)
        self._deadline.guard(secured)
        try:
            secured.do_handshake()
        except BaseException:
            secured.close()
            raise
        return secured


class Client:
    """Sends profiles. Secrets are read from their files each time, and never told."""

    def __init__(self, push: Push) -> None:
        self._push = push

    def post(self, posted: Posted, timeout_s: float | None = None) -> None:
        """Returns once the receiver has taken it; raises PushFailed."""
        authorization, secrets = self._authorization()
        with _Deadline(timeout_s or self._push.timeout_seconds) as deadline, self._explained(deadline):
            status, headers, body = self._exchange(posted, deadline, authorization)
        if not 200 <= status < 300:
            raise self._refusal(status, headers, _words(body, secrets))
        if self._push.kind == "parca" and headers.get_content_type() != "application/json":
            what = f"{self._where} answered {status} with a page that is not Parca's JSON gateway's"
            remedy = "push.url is Parca's address, or the whole path of its gateway"
            raise PushFailed("protocol", what, remedy=remedy, again=False)

    def check(self) -> None:
        """Read the files that it will need. Raises BadFile."""
        try:
            self._authorization()
            self._tls()
        except PushFailed as error:
            raise BadFile(error.what, remedy=error.remedy) from error

    def _exchange(
        self, posted: Posted, deadline: _Deadline, authorization: str | None
    ) -> tuple[int, http.client.HTTPMessage, bytes]:
        target = self._push.target
        tls = self._tls() if target.scheme == "https" else None
        connection = _Connection(target.hostname or "", target.port or (443 if tls else 80), deadline, tls)
        headers = {
            **self._push.headers,
            "User-Agent": f"innoscope/{__version__}",
            "Content-Type": posted.content_type,
            "Accept": "application/json",
            "Connection": "close",
        }
        if self._push.tenant is not None:
            headers["X-Scope-OrgID"] = self._push.tenant
        if authorization is not None:
            headers["Authorization"] = authorization
        try:
            try:
                connection.request("POST", posted.target, posted.body, headers)
            except (BrokenPipeError, ConnectionResetError):
                if connection.sock is None:
                    raise
                # it may have said why before it hung up: 413, 401
            answer = connection.getresponse()
            return answer.status, answer.headers, _told(answer)
        finally:
            connection.close()

    def _tls(self) -> ssl.SSLContext:
        push = self._push
        try:
            context = ssl.create_default_context(cafile=push.ca_file)
            if push.cert_file is not None:
                context.load_cert_chain(push.cert_file, push.key_file)
        except OSError as error:
            raise PushFailed(
                "file",
                f"cannot use push.ca_file, push.cert_file or push.key_file: {error.strerror or error}",
                remedy="openssl x509 -noout -text -in FILE",
            ) from error
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        return context

    def _authorization(self) -> tuple[str | None, tuple[str, ...]]:
        """The header's value, and what of it must never be told."""
        push = self._push
        if push.bearer_token_file is not None:
            token = self._secret(push.bearer_token_file)
            return f"Bearer {token}", (token,)
        if push.basic_auth_file is not None:
            pair = self._secret(push.basic_auth_file)
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
        """What the network does, in words; after the deadline that is the reason of whatever came."""
        try:
            yield
        except PushFailed:
            raise
        except (OSError, http.client.HTTPException, ValueError) as error:
            if deadline.struck or isinstance(error, TimeoutError):
                what = f"{self._where} did not take the profile within {self._push.timeout_seconds:g} s"
                raise PushFailed("timeout", what, remedy=_REMEDIES["timeout"]) from error
            raise self._failure(error) from error

    def _failure(self, error: Exception) -> PushFailed:
        if isinstance(error, ssl.SSLError):
            words = getattr(error, "verify_message", "") or error.reason or str(error)
            return PushFailed(
                "tls", f"no TLS with {self._where}: {words}", remedy="push.ca_file verifies a CA of your own"
            )
        if isinstance(error, socket.gaierror):
            host = self._push.target.hostname
            what = f"the name {host} cannot be resolved: {error.strerror}"
            return PushFailed("dns", what, remedy=f"getent hosts {host}")
        if isinstance(error, OSError):
            what = f"no connection with {self._where}: {error.strerror or error}"
            return PushFailed("connection", what, remedy="is it up, and reachable from here?")
        what = f"{self._where} does not speak HTTP as it should: {type(error).__name__}"
        return PushFailed("protocol", what, remedy="check push.url")

    def _refusal(self, status: int, headers: http.client.HTTPMessage, words: str) -> PushFailed:
        if 300 <= status < 400:
            reason, again = "redirect", False
        elif status in _STATUSES:
            reason, again = _STATUSES[status]
        else:
            reason, again = ("unavailable", True) if status >= 500 else ("refused", False)
        what = f"{self._where} answered {status}" + (f": {words}" if words else "")
        after_s = retry_after(headers.get("Retry-After"), time.time()) if again else 0.0
        return PushFailed(reason, what, remedy=_REMEDIES[reason], again=again, after_s=after_s)

    @property
    def _where(self) -> str:
        target = self._push.target
        return f"{target.scheme}://{target.netloc}{target.path}"


def secret(path: Path) -> str:
    """The only line of the file. Raises OSError, or ValueError where it is no such thing."""
    with path.open("rb") as file:
        text = file.read(_LARGEST_SECRET).decode().strip()
    if not text or not text.isprintable() or not text.isascii():
        raise ValueError("it is not one line of ASCII")
    return text


def retry_after(header: str | None, now: float) -> float:
    """Seconds to wait, at most ten minutes; 0 where nothing is asked or nobody understands it (RFC 9110)."""
    if header is None:
        return 0.0
    if header.strip().isdecimal():
        seconds = float(header)
    else:
        try:
            seconds = email.utils.parsedate_to_datetime(header).timestamp() - now
        except (ValueError, OverflowError):
            return 0.0
    return min(max(0.0, seconds), _MOST_WAIT_S)


def _told(answer: http.client.HTTPResponse) -> bytes:
    """Why it was refused, as much as comes in time. What was taken is taken, whatever follows the status."""
    if 200 <= answer.status < 300:
        return b""
    try:
        return answer.read(_MOST_ANSWER)
    except (OSError, ValueError, http.client.HTTPException):
        return b""


def _words(body: bytes, secrets: tuple[str, ...]) -> str:
    """The beginning of an answer, fit for a log: one line, and nothing that we have to keep to ourselves."""
    text = body.decode("utf-8", "replace")
    for hidden in secrets:
        if hidden:
            text = text.replace(hidden, "…")
    return sanitize.words(text, _MOST_WORDS)
