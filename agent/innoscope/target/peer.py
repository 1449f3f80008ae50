"""Check which process is at the other end of a connection, so that only the server gets credentials."""

from __future__ import annotations

import errno
import socket
import struct
from typing import TYPE_CHECKING, Final

from innoscope.common.errors import SqlFailed
from innoscope.target.process_users import user_name

if TYPE_CHECKING:
    from innoscope.target.model import Target
    from innoscope.target.proc import ProcFs

_UCRED: Final = struct.Struct("iII")
#: Pid and uid of systemd, which listens on behalf of socket-activated services.
INIT_PID: Final = 1
_INIT: Final = (INIT_PID, 0)
#: kernel.overflowuid, which stands for all users that are not mapped into our user namespace.
_UNKNOWN_UID: Final = 65534


class WrongPeer(SqlFailed):
    """The process at the other end is not the server."""


class ServerEnded(SqlFailed):
    """The server's process has exited."""


def require_unix(proc: ProcFs, target: Target, wire: socket.socket, path: str) -> None:
    """Raise SqlFailed unless the target, or systemd on its behalf, listens on the socket (SO_PEERCRED)."""
    pid, uid, _ = _UCRED.unpack(wire.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))
    if (pid, uid) == _INIT or (pid == target.pid and uid in (0, *_uids(proc, target))):
        return
    who = f"process {pid}" if pid else "a process in another pid namespace"
    raise _wrong_peer(f"{who} answers on {path} as {user_name(uid)}, not process {target.pid}")


def listener(path: str) -> int | None:
    """Return the pid of the process that listens on the socket; 0 if it is in another pid namespace.

    Return None if the connection fails, for example because no process listens. Connecting never blocks: on a
    Unix socket, it succeeds or fails at once.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as wire:
        wire.setblocking(False)
        try:
            wire.connect(path)
        except (OSError, ValueError):  # ValueError: the path contains a null character
            return None
        pid: int = _UCRED.unpack(wire.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))[0]
    return pid


def require_tcp(proc: ProcFs, target: Target, wire: socket.socket, where: str) -> None:
    """Raise SqlFailed unless the other end of this local TCP connection is a socket that the target owns.

    Call this after the greeting, when the server has accepted the connection. If the target's descriptors
    cannot be read, the socket must belong to the target's user.
    """
    found = proc.tcp_owner("self", wire.getsockname()[:2], wire.getpeername()[:2])
    uids = _uids(proc, target)
    if found is None:
        raise _wrong_peer(f"no process on this host is at the other end of {where}")
    uid, inode = found
    try:
        ours = inode in proc.socket_inodes(target.pid)
    except PermissionError:
        ours = uid in uids and uid != _UNKNOWN_UID
    if not ours:
        raise _wrong_peer(f"a process of {user_name(uid)} answers at {where}, not process {target.pid}")


def _uids(proc: ProcFs, target: Target) -> tuple[int, ...]:
    """Return the target's user ids. Raise SqlFailed if it has exited."""
    try:
        uids = proc.owner(target.pid).uids
        if proc.stat(target.pid).start_time != target.start_time:
            raise ProcessLookupError(errno.ESRCH, "its pid was reused")
    except (ProcessLookupError, PermissionError) as error:
        raise ended(target) from error
    return uids


def ended(target: Target) -> ServerEnded:
    """Return the error for a server that has exited."""
    return ServerEnded(f"no SQL: process {target.pid} has exited", remedy="innoscope targets")


def _wrong_peer(what: str) -> WrongPeer:
    return WrongPeer(f"no SQL: {what}; no account was sent to it", remedy="innoscope targets")
