"""Who is at the other end of a connection: no account is named to a process that is not the server."""

from __future__ import annotations

import errno
import socket
import struct
from typing import TYPE_CHECKING, Final

from innoscope.common.errors import SqlFailed
from innoscope.target.people import name_of

if TYPE_CHECKING:
    from innoscope.target.model import Target
    from innoscope.target.proc import ProcFs

_UCRED: Final = struct.Struct("iII")
#: systemd listens for a service that it activates by socket.
_INIT: Final = (1, 0)
#: kernel.overflowuid: a user that is not known in our user namespace, so it could be anybody.
_UNKNOWN_UID: Final = 65534
#: Seconds to connect to a socket of this host, of which we want to know who listens.
_CONNECT_S: Final = 0.2


class Stranger(SqlFailed):
    """Another process than the server that is meant is at the other end."""


class Ended(SqlFailed):
    """The server's process has ended."""


def require_unix(proc: ProcFs, target: Target, wire: socket.socket, path: str) -> None:
    """Raise SqlFailed unless the target, or systemd for it, listens on the Unix socket (SO_PEERCRED)."""
    pid, uid, _ = _UCRED.unpack(wire.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))
    if (pid, uid) == _INIT or (pid == target.pid and uid in (0, *_uids(proc, target))):
        return
    who = f"process {pid}" if pid else "a process of another pid namespace"
    raise _stranger(f"{who} answers on {path} as {name_of(uid)}, not process {target.pid}")


def listener(path: str) -> int | None:
    """Return the pid of who listens on the Unix socket at this path; None if nobody does, or not here."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as wire:
        wire.settimeout(_CONNECT_S)
        try:
            wire.connect(path)
        except OSError:
            return None
        pid: int = _UCRED.unpack(wire.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))[0]
    return pid or None


def require_tcp(proc: ProcFs, target: Target, wire: socket.socket, where: str) -> None:
    """Raise SqlFailed unless the other end of this connection, on this host, is a socket of the target.

    Call it after the server's greeting, for which it had to accept the connection. Where its descriptors may
    not be read, the socket has to be its user's.
    """
    found = proc.tcp_owner("self", wire.getsockname()[:2], wire.getpeername()[:2])
    uids = _uids(proc, target)
    if found is None:
        raise _stranger(f"no process of this host is at the other end of {where}")
    uid, inode = found
    try:
        ours = inode in proc.socket_inodes(target.pid)
    except PermissionError:
        ours = uid in uids and uid != _UNKNOWN_UID
    if not ours:
        raise _stranger(f"a process of {name_of(uid)} answers at {where}, not process {target.pid}")


def _uids(proc: ProcFs, target: Target) -> tuple[int, ...]:
    """The target's user ids. Raises SqlFailed if it is gone."""
    try:
        uids = proc.owner(target.pid).uids
        if proc.stat(target.pid).start_time != target.start_time:
            raise ProcessLookupError(errno.ESRCH, "another process has its pid")
    except (ProcessLookupError, PermissionError) as error:
        raise ended(target) from error
    return uids


def ended(target: Target) -> Ended:
    """Return the error for a server that has ended."""
    return Ended(f"no SQL: process {target.pid} has ended", remedy="innoscope targets")


def _stranger(what: str) -> Stranger:
    return Stranger(f"no SQL: {what}; no account was named to it", remedy="innoscope targets")
