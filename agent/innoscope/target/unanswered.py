"""Keep connections on which the server did not answer in time, until the server has closed them.

A server thread that waits for a lock does not notice that its client has disconnected. For example, SHOW
SLAVE STATUS in MySQL 5.6 waits until STOP SLAVE ends ("Lock-Free SHOW SLAVE STATUS" in the manual of Percona
Server 5.6). Reconnecting after each timeout would therefore exhaust ``max_connections``. Instead, this module
shuts down only our sending side of the connection. The server closes its side when the statement has ended.
"""

from __future__ import annotations

import os
import socket
import threading
from typing import Final

from innoscope.common.errors import SqlFailed

#: Maximum number of bytes to discard per check. A peer that sends more is disconnected.
_MAX_BYTES: Final = 4 << 20
_PIECE: Final = 1 << 16


class Unanswered:
    """A client's connections on which a timed-out request may still be running, at most ``most`` of them.

    Call ``check`` before each new connection. Thread-safe.
    """

    def __init__(self, most: int = 1) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._sockets: list[socket.socket] = []

    def keep(self, connection: socket.socket) -> None:
        """Shut down our sending side of a connection, and keep the connection until the server closes it.

        The caller closes its own descriptor.
        """
        try:
            kept = socket.socket(fileno=os.dup(connection.fileno()))
            kept.setblocking(False)
        except OSError:  # already closed, or no descriptor is left
            return
        with self._lock:
            self._sockets.append(kept)
        try:
            kept.shutdown(socket.SHUT_WR)
        except OSError:  # the server has closed the connection
            return

    def check(self) -> None:
        """Raise SqlFailed if ``most`` of the connections have not been closed by the server yet."""
        with self._lock:
            self._sockets = [one for one in self._sockets if not _ended(one)]
            waiting = len(self._sockets)
        if waiting >= self._most:
            raise SqlFailed(
                "no SQL: the server did not answer an earlier request in time, and has not finished it yet",
                remedy="SHOW PROCESSLIST on the server; Innoscope reconnects when the request has ended",
            ) from TimeoutError("timed out")

    def close(self) -> None:
        """Close all connections."""
        with self._lock:
            for one in self._sockets:
                one.close()
            self._sockets = []


def _ended(kept: socket.socket) -> bool:
    """Discard received data. Return whether the connection has ended; if so, close the socket."""
    left = _MAX_BYTES
    while left > 0:
        try:
            piece = kept.recv(_PIECE)
        except BlockingIOError:
            return False
        except OSError:  # reset by the server
            break
        if not piece:
            break
        left -= len(piece)
    kept.close()
    return True
