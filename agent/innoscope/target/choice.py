"""Decide whether the agent may log in to a server. The user must name a server in a container.

The tenant of a container controls what runs in it: its uids, names, sockets and ports. Therefore a server
in a container is watched when it is found, but the agent does not log in to it unless the user named it
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

    A server of this host is chosen whenever it is named. A server in a container is chosen only if the socket
    path (or without one, the port) reaches the server from here. The path that the server reports is not
    trusted, because it can be any path in the container's file system.
    """
    try:
        if not in_container(proc, target):
            return True
    except SqlFailed:
        return False
    if socket is not None:
        return peer.listener(socket) == target.pid
    return port is not None and port == target.port and _shares_our_network(proc, target)


def _shares_our_network(proc: ProcFs, target: Target) -> bool:
    try:
        return proc.namespace(target.pid, "net") == proc.namespace("self", "net")
    except (ProcessLookupError, PermissionError):
        return False
