"""One stable name for each server, the value of the label ``server``."""

from __future__ import annotations

from hashlib import blake2s
from typing import TYPE_CHECKING, Any, Final

from innoscope.common.text import label
from innoscope.target import endpoints
from innoscope.target.proc import NAMESPACES

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from innoscope.target.data_directory import DataDirectory
    from innoscope.target.model import Target
    from innoscope.target.proc import ProcFs

#: Names whose owner is remembered; the first ones are forgotten first.
_REMEMBERED: Final = 1024


class Names:
    """Gives names out. ``configured`` maps a pid or a socket's path, as text, to a name.

    A name belongs to the data directory of the server that had it. Another server gets it only for what it
    does (it listens on that port), not for what its options say.
    """

    def __init__(self, configured: Mapping[str, str], proc: ProcFs) -> None:
        self._configured = dict(configured)
        self._proc = proc
        self._owners: dict[str, DataDirectory] = {}
        self._makeshift: dict[DataDirectory, str] = {}  # names of servers that have not listened yet

    def give(self, target: Target, taken: Collection[str], home: DataDirectory | None = None) -> str:
        """Return the server's name: configured, else that of the last server on its ``home``, else its port.

        One that does not listen yet, or on no port, is named by its socket or data directory until then: ask
        again. Never one of ``taken``, the names of other living servers: a port, socket or directory that
        several containers have is told with its container or home.
        """
        configured = self._configured.get(target.socket or "")
        facts = (
            self._configured.get(str(target.pid)),
            configured if configured and endpoints.listens(self._proc, target) else None,
            *(name for name, owner in self._owners.items() if owner == home and home is not None),
            str(target.port) if target.port is not None else None,
        )
        for name in facts:
            if name and name not in taken:
                return self._given(label(name), home)
        if target.port is not None:
            placed = self._placed((str(target.port),), target, taken, home)
            return self._given(placed, home) if placed else f"pid {target.pid}"
        for option in (configured, self._port_option(target)):
            name = label(option or "")
            if name and self._is_free(name, taken, home):
                return self._given(name, home)
        return self._makeshift_of(target, taken, home)

    def owners(self) -> dict[str, DataDirectory]:
        """Return which home each name belongs to."""
        return dict(self._owners)

    def _makeshift_of(self, target: Target, taken: Collection[str], home: DataDirectory | None) -> str:
        """Return the name that a server has until it listens on a port: what one on its home had before."""
        socket, datadir = label(target.socket or ""), label(target.datadir or "")
        reserved = set(taken)
        if home is not None:
            reserved.update(name for owner, name in self._makeshift.items() if owner != home)
        before = self._makeshift.get(home, "") if home is not None else ""
        free = (name for name in (socket, before, datadir) if name and self._is_free(name, reserved, home))
        name = next(free, None) or self._placed((socket or datadir,), target, taken, home)
        if name is None:
            return f"pid {target.pid}"
        if home is not None:
            self._makeshift.pop(home, None)
            self._makeshift[home] = name
            _bound(self._makeshift)
        return name

    def _placed(
        self, names: Collection[str], target: Target, taken: Collection[str], home: DataDirectory | None
    ) -> str | None:
        """Return one of the names with the container or home that it is in; None if neither is known."""
        every = (label(f"{name} in {place}") for place in _places(target, home) for name in names)
        return next((name for name in every if self._is_free(name, taken, home)), None)

    def _is_free(self, name: str, taken: Collection[str], home: DataDirectory | None) -> bool:
        return name not in taken and self._owners.get(name, home) == home

    def _given(self, name: str, home: DataDirectory | None) -> str:
        if home is not None:
            for other in [one for one, owner in self._owners.items() if owner == home or one == name]:
                del self._owners[other]
            self._owners[name] = home
            _bound(self._owners)
        return name

    def _port_option(self, target: Target) -> str | None:
        """The port of its command line, on which a server that starts up does not listen yet."""
        try:
            port = endpoints.option_port(self._proc.cmdline(target.pid))
        except OSError:
            return None
        return str(port) if port is not None else None


def _places(target: Target, home: DataDirectory | None) -> list[str]:
    """Return what tells a server from those of other containers: its container's id, its home in short."""
    container = target.container or ""
    found = [] if set(container.split(",")) <= {"", *NAMESPACES} else [container]
    if home is not None:
        text = f"{home.device} {home.inode} {home.uid}".encode()
        found.append(blake2s(text, digest_size=6).hexdigest())
    return found


def _bound(remembered: dict[Any, Any]) -> None:
    """Forget the first one if there are too many."""
    if len(remembered) > _REMEMBERED:
        del remembered[next(iter(remembered))]
