"""Which of the host's servers are watched, and under which name."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from innoscope.target import discover
from innoscope.target.home import home_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from innoscope.sensor.naming import Names
    from innoscope.target.home import Home
    from innoscope.target.model import Target
    from innoscope.target.ownership import Rule
    from innoscope.target.proc import ProcFs

_log = logging.getLogger(__name__)

#: A process that neither listens nor has entered its data directory is a server after so many seconds: one
#: that dies before, as in a crash loop, gets no series.
_SETTLES_S: Final = 10.0
#: Seconds until a second server on a data directory is identified again: it waits for the lock of the first.
_DUPLICATE_S: Final = 10.0
#: Different owners of ignored processes that are logged.
_LOGGED: Final = 64


@dataclass(frozen=True, slots=True)
class Admitted:
    """A server's name, and whether what was counted under it before is its own."""

    name: str
    inherits: bool


class Admission:
    """Decides for one sensor. Belongs to the thread that looks for servers."""

    def __init__(
        self, rule: Rule, names: Names, proc: ProcFs, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._rule = rule
        self._names = names
        self._proc = proc
        self._clock = clock
        self._first_seen: dict[int, float] = {}
        self._homes: dict[int, Home | None] = {}
        self._not_before: dict[int, float] = {}
        self._told: set[int] = set()  # whose refusal is in the log
        self._owners: set[str] = set()

    def pids(self, watched: Collection[int], passed_by: Collection[int]) -> list[int]:
        """Return the servers that are watched or may be, at most ``max_servers`` but for those passed by.

        Who is watched keeps its place.
        """
        found = discover.scan(self._proc, self._rule)
        for kept in (self._first_seen, self._homes, self._not_before):
            for pid in kept.keys() - set(found.servers):
                del kept[pid]
        self._told.intersection_update(found.servers)
        for one in found.ignored:
            if one.owner not in self._owners and len(self._owners) < _LOGGED:
                self._owners.add(one.owner)
                extra = {"pid": one.pid, "owner": one.owner, "remedy": one.remedy}
                _log.warning("process with a server's name ignored", extra=extra)
        now = self._clock()
        kept_pids = [pid for pid in found.servers if pid in watched or pid in passed_by]
        new = [pid for pid in found.servers if pid not in kept_pids and now >= self._not_before.get(pid, 0.0)]
        room = max(0, self._rule.max_servers - sum(pid in watched for pid in kept_pids))
        for pid in new[room:]:
            self._refuse(pid, f"{self._rule.max_servers} servers are watched: raise max_servers")
        return sorted(kept_pids + new[:room])

    def admit(self, target: Target, watched: Mapping[int, str]) -> Admitted | None:
        """Return the server's name; None if it is not to be watched now: ask again when ``pids`` has it.

        ``watched`` has the names of the servers that are watched, by pid.
        """
        now, pid = self._clock(), target.pid
        home = home_of(self._proc, target)
        if pid not in watched:
            holder = next((other for other in watched if home and self._homes.get(other) == home), None)
            if holder is not None:
                self._not_before[pid] = now + _DUPLICATE_S
                self._refuse(pid, f"process {holder} is on its data directory")
                return None
            settled = home is not None or target.port is not None
            if not settled and now - self._first_seen.setdefault(pid, now) < _SETTLES_S:
                return None
        self._homes[pid] = home
        taken = {name for other, name in watched.items() if other != pid}
        owners = self._names.owners()
        name = self._names.give(target, taken, home)
        return Admitted(name, owners.get(name, home) == home)

    def _refuse(self, pid: int, why: str) -> None:
        if pid not in self._told:
            self._told.add(pid)
            _log.warning("server not watched", extra={"pid": pid, "reason": why})
