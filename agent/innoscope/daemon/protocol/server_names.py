"""Give each server a stable name, the value of the label ``server``."""

from __future__ import annotations

from hashlib import blake2s
from typing import TYPE_CHECKING, Any, Final

from innoscope.common.sanitize import label
from innoscope.target import endpoints
from innoscope.target.proc import NAMESPACES

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from innoscope.target.data_directory import DataDirectory
    from innoscope.target.model import Target
    from innoscope.target.proc import ProcFs

#: Maximum number of names whose owner is stored; the oldest are dropped first.
_MAX_NAMES: Final = 1024


class ServerNames:
    """Assigns names to servers. The keys of ``configured`` are pids (as strings) and socket paths.

    A name belongs to the data directory of the server that last had it. A server with another data directory
    is named by a port only if it listens on that port; the option ``--port`` is not enough.
    """

    def __init__(self, configured: Mapping[str, str], proc: ProcFs) -> None:
        self._configured = dict(configured)
        self._proc = proc
        self._owners: dict[str, DataDirectory] = {}
        self._provisional: dict[DataDirectory, str] = {}  # names of servers that do not listen on a port yet

    def give(self, target: Target, taken: Collection[str], home: DataDirectory | None = None) -> str:
        """Return the configured name, else the name last used on ``home``, else the server's port.

        A server that does not listen on a port is named by its socket or data directory; call this again when
        it listens. The name is never one of ``taken``, the names of other running servers. If a port, socket
        or directory exists in several containers, the container or a digest of ``home`` is appended.
        """
        configured = self._configured.get(target.socket or "")
        candidates = (
            self._configured.get(str(target.pid)),
            configured if configured and endpoints.listens(self._proc, target) else None,
            *(name for name, owner in self._owners.items() if owner == home and home is not None),
            str(target.port) if target.port is not None else None,
        )
        for name in candidates:
            if name and name not in taken:
                return self._assign(label(name), home)
        if target.port is not None:
            with_place = self._with_place((str(target.port),), target, taken, home)
            return self._assign(with_place, home) if with_place else f"pid {target.pid}"
        for option in (configured, self._port_option(target)):
            name = label(option or "")
            if name and self._is_free(name, taken, home):
                return self._assign(name, home)
        return self._provisional_name(target, taken, home)

    def owners(self) -> dict[str, DataDirectory]:
        """Return the data directory that each name belongs to."""
        return dict(self._owners)

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

    def _port_option(self, target: Target) -> str | None:
        """Return the port on the command line of a server that is starting and does not listen yet."""
        try:
            port = endpoints.option_port(self._proc.cmdline(target.pid))
        except OSError:
            return None
        return str(port) if port is not None else None


def _places(target: Target, home: DataDirectory | None) -> list[str]:
    """Return suffixes that distinguish servers in different containers: container id, digest of ``home``."""
    container = target.container or ""
    found = [] if set(container.split(",")) <= {"", *NAMESPACES} else [container]
    if home is not None:
        text = f"{home.device} {home.inode} {home.uid}".encode()
        found.append(blake2s(text, digest_size=6).hexdigest())
    return found


def _bound(names: dict[Any, Any]) -> None:
    """Drop the oldest entry if there are too many."""
    if len(names) > _MAX_NAMES:
        del names[next(iter(names))]
