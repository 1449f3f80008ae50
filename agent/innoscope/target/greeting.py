"""Whether a server answers, without an account: it greets whoever connects."""

from __future__ import annotations

import socket
import time
from typing import TYPE_CHECKING, Final

from innoscope.errors import SqlFailed
from innoscope.target.container import differing
from innoscope.target.proc import ProcFs
from innoscope.target.unix_socket import socket_from_here

if TYPE_CHECKING:
    from innoscope.target.model import Target

_HEADER: Final = 4  # bytes of a packet's length and number, before its first byte
_GREETINGS: Final = (10, 0xFF)  # protocol version 10, or an error ("Too many connections"): it lives


def answers(target: Target, timeout_s: float) -> bool | None:
    """Whether the server greets within so many seconds; None when it listens nowhere that we can reach.

    Over its Unix socket, else TCP on 127.0.0.1. It counts us in Aborted_connects.
    """
    deadline = time.monotonic() + timeout_s
    try:
        if target.socket is not None:
            greeted = _over_socket(target, target.socket, deadline)
            if greeted is not None:
                return greeted
        if target.port is not None and "net" not in differing(ProcFs(), target.pid):
            return _greets(socket.AF_INET, ("127.0.0.1", target.port), deadline)
    except SqlFailed:  # its socket's folder is gone
        return None
    return None


def _over_socket(target: Target, path: str, deadline: float) -> bool | None:
    with socket_from_here(ProcFs(), target, path) as reachable:
        return _greets(socket.AF_UNIX, reachable, deadline)


def _greets(family: socket.AddressFamily, address: str | tuple[str, int], deadline: float) -> bool | None:
    """None when nobody listens there. A full backlog is a silence like any other."""
    with socket.socket(family, socket.SOCK_STREAM) as connection:
        received = b""
        try:
            connection.settimeout(max(0.001, deadline - time.monotonic()))
            connection.connect(address)
            while len(received) <= _HEADER:
                connection.settimeout(max(0.001, deadline - time.monotonic()))
                piece = connection.recv(64)
                if not piece:
                    return False
                received += piece
        except (ConnectionRefusedError, FileNotFoundError):
            return None
        except OSError:
            return False
        return received[_HEADER] in _GREETINGS
