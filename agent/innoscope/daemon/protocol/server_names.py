"""Give each server a stable name, the value of the ``server`` label."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

from innoscope import _native
from innoscope.common.labels import label
from innoscope.daemon.protocol.configured_servers import ConfiguredServers, ServerAddress
from innoscope.target.pods import Pods
from innoscope.target.proc import NAMESPACES

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from innoscope.target.data_directory import DataDirectory
    from innoscope.target.model import Target
    from innoscope.target.proc import ProcFs

#: Maximum number of names whose owner is stored; the oldest are dropped first.
_MAX_NAMES: Final = 1024


class ServerNames:
    """Assigns names to servers. The keys of ``configured`` are pids (as strings) and socket paths.

    A name belongs to the data directory of the server that last had it. A server with another data directory
    is named after a port only if it listens on that port; the ``--port`` option is not enough. The name of a
    configured socket belongs to the process that the socket reaches from here (configured_servers.py).

    A server in a Kubernetes pod is named ``NAMESPACE/POD/CONTAINER`` (target/pods.py).
    """

    def __init__(
        self,
        configured: Mapping[str, str],
        proc: ProcFs,
        clock: Callable[[], float] = time.monotonic,
        pods: Pods | None = None,
    ) -> None:
        self._pods = pods or Pods()
        named = {where: label(name) for where, name in configured.items()}
        self._pids = {where: name for where, name in named.items() if where.isdecimal()}
        addresses = [ServerAddress(name, where) for where, name in named.items() if where not in self._pids]
        self._sockets = ConfiguredServers(addresses, proc, clock)
        self._owners: dict[str, DataDirectory] = {}
        self._provisional: dict[DataDirectory, str] = {}  # names of servers that do not listen on a port yet

    def try_sockets(self, target: Target) -> None:
        """Find out whether the configured socket with the process's path reaches the process.

        Call this before ``give``.

        It may block forever if the file system of a socket does not respond. Thread-safe.
        """
        self._sockets.try_addresses(target)

    def give(
        self,
        target: Target,
        taken: Collection[str],
        home: DataDirectory | None = None,
        port_option: int | None = None,
    ) -> str:
        """Return the configured name, else the pod's, else the one last used on ``home``, else the port.

        ``port_option`` is the port on the server's command line.

        A server that does not listen on a port is named after ``port_option`` if no other server has that
        name, else after its socket or data directory; call this again unless ``is_final``. ``taken`` contains
        the names of other running servers. The result is one of them only if a configured socket reaches this
        server instead of the server with that name. If a port, socket or directory exists in several
        containers, the container or a digest of ``home`` is appended.
        """
        by_pid = self._pids.get(str(target.pid))
        if by_pid and by_pid not in taken:
            return self._assign(by_pid, home)
        configured = self._sockets.name_of(target, home)
        if configured and (configured not in taken or self._sockets.is_proven(configured)):
            return self._assign(configured, home)
        taken = {*taken, *self._sockets.names}
        candidates = (
            self._pod_name(target),
            *(name for name, owner in self._owners.items() if owner == home and home is not None),
            str(target.port) if target.port is not None else None,
        )
        for name in candidates:
            if name and name not in taken:
                return self._assign(name, home)
        if target.port is not None:
            with_place = self._with_place((str(target.port),), target, taken, home)
            return self._assign(with_place, home) if with_place else f"pid {target.pid}"
        name = label(str(port_option or ""))
        if name and self._is_free(name, taken, home):
            return self._assign(name, home)
        return self._provisional_name(target, taken, home)

    def is_configured(self, target: Target, home: DataDirectory | None) -> bool:
        """Return whether the configuration names this server. Call ``try_sockets`` first."""
        return str(target.pid) in self._pids or self._sockets.name_of(target, home) is not None

    @property
    def configured(self) -> int:
        """Return the number of servers that the configuration names."""
        return len(self._pids) + len(self._sockets.names)

    def is_final(self, target: Target) -> bool:
        """Return whether the server's name is final, that is, can change only when a server exits.

        The server must listen on a port, and each matching socket must have reached a running server. The
        kubelet creates the link that names a container after it has started the container.
        """
        if _container_id(target) and self._pods.exist and self._pod_name(target) is None:
            return False
        return target.port is not None and self._sockets.is_final(target)

    def owners(self) -> dict[str, DataDirectory]:
        """Return the data directory that each name belongs to."""
        return dict(self._owners)

    def _pod_name(self, target: Target) -> str | None:
        """Return the name of the server's pod and container; None if it is not in a pod."""
        found = self._pods.find(_container_id(target))
        return label(str(found)) if found else None

    def _provisional_name(self, target: Target, taken: Collection[str], home: DataDirectory | None) -> str:
        """Return a name for a server without a listening port: its socket, old name or data directory."""
        socket, datadir = label(target.socket or ""), label(target.datadir or "")
        reserved = set(taken)
        if home is not None:
            reserved.update(name for owner, name in self._provisional.items() if owner != home)
        before = self._provisional.get(home, "") if home is not None else ""
        free = (name for name in (socket, before, datadir) if name and self._is_free(name, reserved, home))
        name = next(free, None) or self._with_place((socket or datadir,), target, taken, home)
        if name is None:
            return f"pid {target.pid}"
        if home is not None:
            self._provisional.pop(home, None)
            self._provisional[home] = name
            _bound(self._provisional)
        return name

    def _with_place(
        self, names: Collection[str], target: Target, taken: Collection[str], home: DataDirectory | None
    ) -> str | None:
        """Return a free name with the container or a digest of ``home`` appended; None if there is none."""
        every = (label(f"{name} in {place}") for place in _places(target, home) for name in names)
        return next((name for name in every if self._is_free(name, taken, home)), None)

    def _is_free(self, name: str, taken: Collection[str], home: DataDirectory | None) -> bool:
        return name not in taken and self._owners.get(name, home) == home

    def _assign(self, name: str, home: DataDirectory | None) -> str:
        if home is not None:
            for other in [one for one, owner in self._owners.items() if owner == home or one == name]:
                del self._owners[other]
            self._owners[name] = home
            _bound(self._owners)
        return name


def _places(target: Target, home: DataDirectory | None) -> list[str]:
    """Return suffixes that distinguish servers in different containers: container id, digest of ``home``."""
    container = _container_id(target)
    found = [container] if container else []
    if home is not None:
        text = f"{home.device} {home.inode} {home.uid}".encode()
        found.append(_native.blake2s(text, size=6).hex())
    return found


def _container_id(target: Target) -> str:
    """Return the id of the server's container; "" if there is none, or if only namespaces differ."""
    container = target.container or ""
    return "" if set(container.split(",")) <= {"", *NAMESPACES} else container


def _bound(names: dict[Any, Any]) -> None:
    """Drop the oldest entry if there are too many."""
    if len(names) > _MAX_NAMES:
        del names[next(iter(names))]
