"""Select the servers that ``innoscope sensor --only`` names."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from innoscope.daemon.protocol.configured_servers import ConfiguredServers, ServerAddress

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from innoscope.daemon.sensor.identification import Identified
    from innoscope.target.model import Target
    from innoscope.target.proc import ProcFs

#: Seconds until a process whose socket reaches another process is identified again; doubled each time.
_RETRY_S: Final = 2.0
_MAX_RETRY_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class _Excluded:
    """A process that is not selected, until the monotonic time ``until``."""

    retry_s: float
    until: float


class SelectedServers:
    """The servers with these pids and sockets; all servers if there are none.

    A socket selects the process that it reaches from here (configured_servers.py). Only ``try_sockets`` is
    thread-safe.
    """

    def __init__(
        self, places: Collection[str], proc: ProcFs, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._all = not places
        self._pids = frozenset(place for place in places if place.isdecimal())
        self._paths = frozenset(places) - self._pids
        self._sockets = ConfiguredServers([ServerAddress(path, path) for path in self._paths], proc, clock)
        self._clock = clock
        self._excluded: dict[int, _Excluded] = {}

    def try_sockets(self, target: Target) -> None:
        """Find out whether the selected socket with the process's path reaches the process.

        Call this before ``selects``.

        It may block forever if the file system of a socket does not respond.
        """
        self._sockets.try_addresses(target)

    def selects(self, found: Identified) -> bool:
        """Return whether the server is selected. If it is not, ``excluded`` contains it for a while.

        If its socket is not one of ``places``, ``excluded`` contains it until ``forget_others`` removes it. A
        process that may still listen on a selected socket is not excluded.
        """
        target, before = found.target, self._excluded.pop(found.target.pid, None)
        if self._all or str(target.pid) in self._pids or self._owned(found) is not None:
            return True
        named = target.socket in self._paths
        if target.socket is not None and (found.listens or not named):
            retry_s = min(2 * before.retry_s, _MAX_RETRY_S) if before else _RETRY_S
            self._excluded[target.pid] = _Excluded(retry_s, self._clock() + (retry_s if named else math.inf))
        return False

    def excluded(self) -> frozenset[int]:
        """Return the pids of the processes that need not be identified."""
        now = self._clock()
        return frozenset(pid for pid, one in self._excluded.items() if now < one.until)

    def forget_others(self, pids: Collection[int]) -> None:
        """Forget excluded processes other than these."""
        for gone in self._excluded.keys() - set(pids):
            del self._excluded[gone]

    def displaced(self, found: Identified, watched: Iterable[Target]) -> list[int]:
        """Return the pids of the watched servers whose socket reaches this server instead."""
        path = self._owned(found)
        if path is None or not self._sockets.is_proven(path):
            return []
        others = (one for one in watched if one.socket == path and one.pid != found.target.pid)
        return [one.pid for one in others if str(one.pid) not in self._pids]

    def is_final(self, target: Target) -> bool:
        """Return whether no other process can displace the server while it runs."""
        return self._all or str(target.pid) in self._pids or self._sockets.is_final(target)

    def _owned(self, found: Identified) -> str | None:
        """Return the socket that selects the server, or None."""
        return self._sockets.name_of(found.target, found.home)
