"""An HTTP connection with one deadline for connecting, the TLS handshake, sending and receiving.

The deadline cannot interrupt name resolution, which has the resolver's own timeouts.
"""

from __future__ import annotations

import http.client
import socket
import ssl
import threading
import time
from contextlib import suppress


class Deadline:
    """Shuts a connection down at a deadline, because socket timeouts limit only single reads and writes."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._end = time.monotonic() + seconds
        self._timer = threading.Timer(seconds, self._expire)
        self._timer.daemon = True
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self.expired = False

    def __enter__(self) -> Deadline:
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


class HttpConnection(http.client.HTTPConnection):
    """A connection whose deadline also covers connecting and the TLS handshake."""

    def __init__(self, host: str, port: int, deadline: Deadline, tls: ssl.SSLContext | None) -> None:
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
