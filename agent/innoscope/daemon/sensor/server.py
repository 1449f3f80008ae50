"""The sensor's Unix socket: access control and limits. One thread per client, one request per connection."""

from __future__ import annotations

import grp
import logging
import os
import socket
import struct
import threading
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from innoscope.common.errors import InnoscopeError, NoRights
from innoscope.daemon.protocol import messages

if TYPE_CHECKING:
    from collections.abc import Callable

    from innoscope.common.supervision import Beat, Supervisor

_log = logging.getLogger(__name__)

#: Maximum number of clients in total: if one user takes all its slots, another user still has as many.
MAX_CLIENTS: Final = 24
#: Maximum number of clients per user, so that one user's slow clients do not lock out other users.
MAX_PER_USER: Final = 12
#: Timeout for receiving a client's request, in seconds.
REQUEST_S: Final = 2.0
#: Timeout for sending the reply to a client, in seconds.
REPLY_S: Final = 5.0
_UMASK: Final = 0o117  # read and write for the owner and the group
_UCRED: Final = struct.Struct("iII")
_SO_PEERGROUPS: Final = 59  # asm-generic/socket.h, since Linux 4.13; missing from the socket module
_GROUPS_BYTES: Final = 1024  # Python's limit for getsockopt: 256 groups
_SUN_PATH: Final = 107
_BACKLOG: Final = 128
_ANSWERS_S: Final = 0.5
#: Seconds between heartbeats of the accepting thread.
_BEAT_S: Final = 1.0
#: Seconds without a heartbeat after which the accepting thread counts as hung.
_HANGS_S: Final = 30.0


class SocketTaken(InnoscopeError):
    """Another sensor listens on the socket, or the socket cannot be created."""


class SocketServer:
    """Listens on ``path`` and answers requests with the result of ``handle``.

    Root, the sensor's own user and members of ``group`` may connect. An exception in ``handle`` becomes an
    error reply. The constructor raises SocketTaken or NoRights.
    """

    def __init__(
        self,
        path: str,
        handle: Callable[[dict[str, Any]], dict[str, Any]],
        supervisor: Supervisor,
        *,
        group: str | None = None,
    ) -> None:
        self._path = Path(path)
        self._handle = handle
        self._gid = _group_id(group)
        self._lock = threading.Lock()
        self._clients: Counter[int] = Counter()  # by user
        #: Clients that have not sent their request yet, oldest first, and their users.
        self._reading: dict[socket.socket, int] = {}
        self._wire = self._listen()
        self._inode = self._path.stat().st_ino
        self._wire.settimeout(_BEAT_S)
        supervisor.start("socket", self._accept, _HANGS_S)

    def close(self) -> None:
        """Stop listening, and remove the socket file unless another sensor replaced it."""
        with suppress(OSError):
            self._wire.shutdown(socket.SHUT_RDWR)  # wakes the accepting thread
        self._wire.close()
        with suppress(OSError):
            if self._path.stat().st_ino == self._inode:
                self._path.unlink()

    def _listen(self) -> socket.socket:
        """Return a listening socket, whose permissions are set before any client can connect."""
        partial = self._path.with_name(f".{self._path.name}.{os.getpid()}")
        if len(os.fsencode(partial)) > _SUN_PATH:
            raise SocketTaken(
                f"cannot listen on {self._path}: the path is too long for a socket",
                remedy="--sensor-socket SHORTER",
            )
        wire = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        try:
            self._path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
            if _has_listener(self._path):
                raise SocketTaken(
                    f"another sensor listens on {self._path}", remedy="use that one, or --sensor-socket OTHER"
                )
            partial.unlink(missing_ok=True)
            before = os.umask(_UMASK)  # a later chmod could follow a link that replaced the socket
            try:
                wire.bind(str(partial))
            finally:
                os.umask(before)
            if self._gid is not None:
                os.chown(partial, -1, self._gid, follow_symlinks=False)
            wire.listen(_BACKLOG)
            partial.replace(self._path)  # replaces a stale socket
        except OSError as error:
            wire.close()
            partial.unlink(missing_ok=True)
            kind = NoRights if isinstance(error, PermissionError) else SocketTaken
            raise kind(
                f"cannot listen on {self._path}: {error.strerror}",
                remedy="use --sensor-socket PATH, in a directory that the sensor's user owns",
            ) from error
        except InnoscopeError:
            wire.close()
            raise
        return wire

    def _accept(self, beat: Beat) -> None:
        while True:
            beat()
            try:
                client, _ = self._wire.accept()
            except TimeoutError:
                continue
            except OSError:
                if self._wire.fileno() < 0:
                    return
                time.sleep(0.1)  # for example, out of file descriptors: wait until other clients disconnect
                continue
            self._handle_client(client)

    def _handle_client(self, client: socket.socket) -> None:
        try:
            uid, allowed = self._authorize(client)
        except OSError:  # the client has disconnected
            client.close()
            return
        if not allowed:
            _log.warning("client refused", extra={"uid": uid})
            _refuse(client, f"access denied: user {uid} is not in the sensor's group")
        elif not self._admit(client, uid):
            _refuse(client, "too many requests: try again")
        else:
            self._start_thread(client, uid)

    def _start_thread(self, client: socket.socket, uid: int) -> None:
        try:
            threading.Thread(target=self._serve, args=(client, uid), name="client", daemon=True).start()
        except (RuntimeError, MemoryError):  # out of threads
            self._forget(client, uid)

    def _forget(self, client: socket.socket, uid: int) -> None:
        with self._lock:
            self._reading.pop(client, None)
            self._clients[uid] -= 1
        client.close()

    def _admit(self, client: socket.socket, uid: int) -> bool:
        """Reserve a slot for the client, and return whether a slot was available.

        If all slots of this user are taken, disconnect one of the user's clients to free a slot; if all slots
        are taken, disconnect any client. In both cases, choose the client that has been connected longest
        without sending a request.
        """
        with self._lock:
            if self._clients[uid] >= MAX_PER_USER:
                waiting = [one for one, user in self._reading.items() if user == uid]
            elif self._clients.total() >= MAX_CLIENTS:
                waiting = list(self._reading)
            else:
                waiting = None
            if waiting is not None:
                if not waiting:
                    return False
                del self._reading[waiting[0]]
                with suppress(OSError):
                    waiting[0].shutdown(socket.SHUT_RDWR)
            self._clients[uid] += 1
            self._reading[client] = uid
            return True

    def _serve(self, client: socket.socket, uid: int) -> None:
        try:
            self._answer(client)
        except (messages.TooSlow, messages.BadMessage, OSError) as error:
            _log.info("client disconnected", extra={"reason": str(error) or type(error).__name__})
        except Exception:
            _log.exception("cannot serve a client")
        finally:
            self._forget(client, uid)

    def _answer(self, client: socket.socket) -> None:
        request = messages.receive(client, messages.REQUEST_BYTES, time.monotonic() + REQUEST_S)
        with self._lock:
            self._reading.pop(client, None)
        answer = self._result_of(request)
        try:
            messages.send(client, answer, messages.REPLY_BYTES, time.monotonic() + REPLY_S)
        except messages.BadMessage as error:
            _refuse(client, error.what)

    def _result_of(self, request: Any) -> dict[str, Any]:
        if not isinstance(request, dict):
            return {"error": "the request must be an object"}
        try:
            return {"ok": self._handle(request)}
        except InnoscopeError as error:
            return {"error": error.what}
        except Exception as error:
            _log.exception("request failed", extra={"call": str(request.get("call"))[:40]})
            return {"error": f"{type(error).__name__}: {error}"}

    def _authorize(self, client: socket.socket) -> tuple[int, bool]:
        """Return a client's user id, and whether it may use the socket."""
        _, uid, gid = _UCRED.unpack(client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))
        own = uid in (0, os.geteuid())
        return uid, own or (self._gid is not None and self._gid in (gid, *_groups(client)))


def _groups(client: socket.socket) -> tuple[int, ...]:
    """Return the client's supplementary groups at the time of connecting.

    Return () if the kernel does not support this, or if there are more than 256 groups.
    """
    try:
        raw = client.getsockopt(socket.SOL_SOCKET, _SO_PEERGROUPS, _GROUPS_BYTES)
    except OSError:
        return ()
    return struct.unpack(f"{len(raw) // 4}I", raw)


def _group_id(group: str | None) -> int | None:
    if group is None:
        return None
    try:
        return grp.getgrnam(group).gr_gid
    except KeyError as error:
        raise SocketTaken(f"unknown group {group}", remedy=f"groupadd --system {group}") from error


def _has_listener(path: Path) -> bool:
    """Return whether a process listens on the path. Raise OSError if the path exists and is not a socket."""
    if not path.exists():
        return False
    if not path.is_socket():
        raise FileExistsError(0, "the path exists and is not a socket")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as probe:
        probe.settimeout(_ANSWERS_S)
        try:
            probe.connect(str(path))
        except (ConnectionRefusedError, FileNotFoundError):
            return False
        except TimeoutError:
            return True
        listener, _, _ = _UCRED.unpack(probe.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))
    return _is_running(listener)


def _is_running(pid: int) -> bool:
    """Return whether the process is running and not exiting.

    After a sensor is killed, the processes that detach its probes still hold its descriptors, including the
    listening socket.
    """
    try:
        Path(f"/proc/{pid}/exe").readlink()
    except FileNotFoundError:
        return pid == 0  # 0 means another pid namespace: assume that the process is running
    except OSError:
        return True
    return True


def _refuse(client: socket.socket, reason: str) -> None:
    """Send an error reply, waiting at most 0.1 s for the client, and disconnect."""
    with suppress(OSError, messages.TooSlow, messages.BadMessage):
        messages.send(client, {"error": reason}, messages.REPLY_BYTES, time.monotonic() + 0.1)
    client.close()
