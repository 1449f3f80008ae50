"""Which servers may be logged in to: those of this host, and those in containers that a person chose.

The tenant of a container decides what runs in it, and with which uid, name, socket and port. So a server in a
container is watched once it is found, but no account is named to it unless a person chose it
(``Target.chosen``), and the password itself is never sent over its socket.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from innoscope.common.errors import SqlFailed
from innoscope.target import peer
from innoscope.target.container import in_foreign_container

if TYPE_CHECKING:
    from innoscope.target.model import Target
    from innoscope.target.proc import ProcFs

#: Namespaces that units of systemd on this host have too (PrivateTmp=, PrivateNetwork=).
_OF_UNITS: Final = frozenset({"", "mnt", "net"})


class NotChosen(SqlFailed):
    """The server runs in a container, and no person chose it."""


def require_chosen(proc: ProcFs, target: Target) -> None:
    """Raise NotChosen if the server is in a container and nobody chose it, SqlFailed if it has ended."""
    if not target.chosen and in_container(proc, target):
        raise NotChosen(
            "no SQL: server in a container: SQL is used only when you name it: "
            f"innoscope … --pid {target.pid}",
            remedy="in the agent: add a [[server]] entry to agent.toml",
        )


def in_container(proc: ProcFs, target: Target) -> bool:
    """Return whether it is in another pid or user namespace, or in a container's cgroup that we are not in.

    Raises SqlFailed if it has ended.
    """
    if not _OF_UNITS.issuperset((target.container or "").split(",")):
        return True
    try:
        return proc.owner(target.pid).nested or in_foreign_container(proc, target.pid)
    except (ProcessLookupError, PermissionError) as error:
        raise peer.ended(target) from error


def chosen_by(proc: ProcFs, target: Target, socket: str | None, port: int | None) -> bool:
    """Return whether a person who named this path of a socket, or this port, has chosen the server.

    A server of this host always is. One in a container is if the path, else the port, leads to it from here:
    what it calls its socket does not count, in its own file system that may have any path.
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
