"""Decide whether Innoscope may log in to a server: to one in a container only if the user named it.

The tenant of a container controls what runs in it: its uids, names, sockets and ports. Therefore a server
in a container is watched when it is found, but Innoscope does not log in to it unless the user named it
(``Target.chosen``). Even then, the password itself is never sent over the server's Unix socket.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from innoscope.common.errors import SqlFailed
from innoscope.target import peer
from innoscope.target.container import in_foreign_container

if TYPE_CHECKING:
    from innoscope.target.model import Target
    from innoscope.target.proc import ProcFs

#: Namespaces that may also differ for systemd units outside containers (PrivateTmp=, PrivateNetwork=).
_OF_UNITS: Final = frozenset({"", "mnt", "net"})


class NotChosen(SqlFailed):
    """The server runs in a container, and the user did not name it."""


def require_chosen(proc: ProcFs, target: Target) -> None:
    """Raise NotChosen if the server is in a container and was not named; SqlFailed if it has exited."""
    if not target.chosen and in_container(proc, target):
        raise NotChosen(
            "no SQL: server in a container: SQL is used only when you name it: "
            f"innoscope … --pid {target.pid}",
            remedy="in the agent: add a [[server]] entry to agent.toml",
        )


def in_container(proc: ProcFs, target: Target) -> bool:
    """Return whether the server is in a container.

    Such a server has a pid or user namespace that differs from ours, or is in the cgroup of a container that
    we are not in. Raise SqlFailed if the server has exited.
    """
    if not _OF_UNITS.issuperset((target.container or "").split(",")):
        return True
    try:
        return proc.owner(target.pid).nested or in_foreign_container(proc, target.pid)
    except (ProcessLookupError, PermissionError) as error:
        raise peer.ended(target) from error


def chosen_by(proc: ProcFs, target: Target, socket: str | None, port: int | None) -> bool:
    """Return whether naming this socket path or port chooses the server.

    A server on this host is chosen whenever it is named. A server in a container is chosen only if the socket
    path (or without one, the port) reaches the server from here. The path that the server reports is not
    trusted, because it can be any path in the container's file system.
    """
    try:
        return not in_container(proc, target) or reaches(proc, target, socket, port) is True
    except SqlFailed:
        return False


def reaches(proc: ProcFs, target: Target, socket: str | None, port: int | None) -> bool | None:
    """Return whether this socket path (or without one, this port) reaches the server from here.

    Return None if no process listens at the path, or systemd listens on behalf of the server. For a server in
    a container or in another network namespace, return False instead of None.
    """
    if socket is None:
        return port is not None and port == target.port and _shares_our_network(proc, target)
    found = peer.listener(socket)
    if found == target.pid:
        return True  # in a container, that may be process 1
    if found not in (None, peer.INIT_PID):
        return False
    try:
        cannot_tell = not in_container(proc, target) and _shares_our_network(proc, target)
    except SqlFailed:
        return False
    return None if cannot_tell else False


def _shares_our_network(proc: ProcFs, target: Target) -> bool:
    try:
        return proc.network(target.pid) == proc.network("self")
    except (ProcessLookupError, PermissionError):
        return False
