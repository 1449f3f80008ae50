"""Limit the HTTP server's open connections. At the limit, the client with the most connections loses one."""

from __future__ import annotations

import contextlib
import ipaddress
import socket
import threading
import time
from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

MAX_CONNECTIONS: Final = 64
#: Length of the IPv6 prefix that counts as one client, because a single subnet has 2**64 addresses.
_SITE_BITS: Final = 64


class OpenConnection:
    """An open connection.

    With TLS, ``socket`` is later replaced by the TLS socket. ``client`` is the client's IPv4 address or IPv6
    /64 prefix, as returned by ``client_of``.
    """

    def __init__(self, connection: socket.socket, client: str, seconds: float) -> None:
        self.socket = connection
        self.client = client
        self.busy = False
        self.ended = threading.Event()
        self.set_deadline(seconds)

    def set_deadline(self, seconds: float) -> None:
        """Set the deadline of the current step to ``seconds`` from now."""
        self.until = time.monotonic() + seconds

    def end(self) -> None:
        """Shut the socket down. This wakes the connection's thread, which closes the socket."""
        self.ended.set()
        with contextlib.suppress(OSError):
            # not SSLSocket.shutdown, which drops the TLS state while the connection's thread uses it
            socket.socket.shutdown(self.socket, socket.SHUT_RDWR)


class Connections:
    """Tracks open connections, and which of them are serving a request. Each connection has a thread.

    If there are too many, the client with the most connections loses one: the one that has been idle longest
    or, if all of them are serving requests, the least recently used one. Therefore, a client that opens many
    connections displaces only its own.
    """

    def __init__(self, limit: int = MAX_CONNECTIONS) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        self._open: dict[OpenConnection, None] = {}  # least recently used first
        self._answering: dict[OpenConnection, float] = {}  # start times; includes evicted connections

    def __len__(self) -> int:
        return len(self._open)

    @property
    def crowded(self) -> bool:
        """Return whether more than half of the allowed connections are open."""
        return len(self._open) > self._limit // 2

    def add(self, wire: socket.socket, client: str, seconds: float) -> OpenConnection:
        """Add a connection whose client has ``seconds`` to send a request.

        At the limit, close another connection.
        """
        connection = OpenConnection(wire, client, seconds)
        with self._lock:
            if len(self._open) >= self._limit:
                victim = self._victim()
                del self._open[victim]
                victim.end()
            self._open[connection] = None
        return connection

    def remove(self, connection: OpenConnection) -> None:
        """Remove a connection that is closed."""
        with self._lock:
            self._open.pop(connection, None)

    @contextmanager
    def answering(self, connection: OpenConnection) -> Iterator[None]:
        """Mark the connection as serving a request; afterwards it is the most recently used one."""
        with self._lock:
            connection.busy = True
            self._answering[connection] = time.monotonic()
        try:
            yield
        finally:
            with self._lock:
                connection.busy = False
                del self._answering[connection]
                if connection in self._open:
                    del self._open[connection]
                    self._open[connection] = None

    def longest_s(self) -> float:
        """Return how many seconds the oldest request in progress has taken so far; 0 if there is none."""
        with self._lock:
            began = list(self._answering.values())
        return time.monotonic() - min(began) if began else 0.0

    def end_expired(self) -> None:
        """End connections whose deadline has passed, even if their clients keep sending single bytes."""
        now = time.monotonic()
        with self._lock:
            for connection in self._open:
                if now > connection.until:
                    connection.end()

    def close_all(self) -> None:
        """End all connections."""
        with self._lock:
            for connection in self._open:
                connection.end()
            self._open.clear()

    def _victim(self) -> OpenConnection:
        per_client = Counter(connection.client for connection in self._open)
        most = max(per_client.values())
        candidates = [connection for connection in self._open if per_client[connection.client] == most]
        return next((one for one in candidates if not one.busy), candidates[0])


def client_of(host: str) -> str:
    """Return the client that an address counts as: the address itself, or its /64 prefix in IPv6."""
    address = ipaddress.ip_address(host.partition("%")[0])
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is None:
            return str(ipaddress.ip_network((address, _SITE_BITS), strict=False))
        address = address.ipv4_mapped
    return str(address)
