"""One stable name for each server, the value of the label ``server``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from innoscope.target import endpoints
from innoscope.text import label

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from innoscope.target.home import Home
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
        self._owners: dict[str, Home] = {}

    def give(self, target: Target, taken: Collection[str], home: Home | None = None) -> str:
        """Return the server's name: configured, else that of the last server on its ``home``, else its port.

        One that does not listen yet, or on no port, is named by its socket, data directory or pid until then:
        ask again. Never one of ``taken``, the names of other living servers.
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
        lasting, makeshift = (configured, self._port_option(target)), (target.socket, target.datadir)
        for option in (*lasting, *makeshift):
            name = label(option or "")
            if name and name not in taken and self._owners.get(name, home) == home:
                return self._given(name, home) if option in lasting else name
        return f"pid {target.pid}"

    def owners(self) -> dict[str, Home]:
        """Return which home each name belongs to."""
        return dict(self._owners)

    def _given(self, name: str, home: Home | None) -> str:
        if home is not None:
            for other in [one for one, owner in self._owners.items() if owner == home or one == name]:
                del self._owners[other]
            self._owners[name] = home
            if len(self._owners) > _REMEMBERED:
                del self._owners[next(iter(self._owners))]
        return name

    def _port_option(self, target: Target) -> str | None:
        """The port of its command line, on which a server that starts up does not listen yet."""
        try:
            port = endpoints.option_port(self._proc.cmdline(target.pid))
        except OSError:
            return None
        return str(port) if port is not None else None
