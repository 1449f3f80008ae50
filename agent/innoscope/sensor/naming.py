"""One stable name for each server, the value of the label ``server``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from innoscope.target import endpoints

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from innoscope.target.model import Target
    from innoscope.target.proc import ProcFs


class Names:
    """Gives names out. ``configured`` maps a pid or a socket's path, as text, to a name."""

    def __init__(self, configured: Mapping[str, str], proc: ProcFs) -> None:
        self._configured = dict(configured)
        self._proc = proc
        self._homes: dict[tuple[str, str], str] = {}

    def give(self, target: Target, taken: Collection[str]) -> str:
        """The server's name: configured, else that of the last server on its data folder, else its port.

        One that does not listen yet, or on no port, is named by its socket, data folder or pid until then:
        ask again. Never one of ``taken``, the names of other living servers.
        """
        home = self._home(target)
        lasting = (
            self._configured.get(str(target.pid)),
            self._configured.get(target.socket or ""),
            self._homes.get(home) if home else None,
            self._port(target),
        )
        for name in lasting:
            if name and name not in taken:
                if home:
                    self._homes[home] = name
                return name
        for name in (target.socket, target.datadir):
            if name and name not in taken:
                return name
        return f"pid {target.pid}"

    def _port(self, target: Target) -> str | None:
        """The port, or the one that it will listen on: a server that starts up does not listen yet."""
        if target.port is not None:
            return str(target.port)
        try:
            arguments = self._proc.cmdline(target.pid)
        except OSError:
            return None
        return endpoints.option(arguments, "port", "-P")

    @staticmethod
    def _home(target: Target) -> tuple[str, str] | None:
        """What a server and its successor have in common: the data folder, within their file system."""
        if target.datadir is None:
            return None
        return f"{target.container or ''}{target.root}", target.datadir
