"""Which of the host's servers are watched, and under which name."""

from __future__ import annotations

import logging
import time
from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from innoscope.target import discover
from innoscope.target.container import tenant_of
from innoscope.target.data_directory import data_directory_of, working_directory_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

    from innoscope.daemon.protocol.server_names import Names
    from innoscope.target.data_directory import DataDirectory
    from innoscope.target.model import Target
    from innoscope.target.ownership import Ignored, Rule
    from innoscope.target.proc import ProcFs

_log = logging.getLogger(__name__)

#: A process that neither listens nor has entered its data directory is a server after so many seconds: one
#: that dies before, as in a crash loop, gets no series.
_SETTLES_S: Final = 10.0
#: Seconds until a second server on a data directory is identified again: it waits for the lock of the first.
_DUPLICATE_S: Final = 10.0
#: Seconds for which the place of a server that ended is held for the next one on its data directory.
_HELD_S: Final = 60.0
#: Seconds until a server that gave up its place to another owner's may have one again.
_EVICTED_S: Final = 10.0
#: Different owners of ignored processes that are logged.
_LOGGED: Final = 64


@dataclass(frozen=True, slots=True)
class Admitted:
    """A server's name, and whether what was counted under it before is its own."""

    name: str
    inherits: bool


@dataclass(frozen=True, slots=True)
class _Place:
    """One of ``max_servers`` places. ``tenant`` is whose server has it: a container's, or a user's."""

    tenant: str
    home: DataDirectory | None


@dataclass(frozen=True, slots=True)
class _Held:
    """The place of a server that has ended, for whoever begins on its data directory ``until`` then."""

    tenant: str
    until: float


class Admission:
    """Decides for one sensor. Belongs to the thread that looks for servers.

    Places are fair: the tenant that has the fewest comes first, of its servers the one that was offered a
    place longest ago. Where all places are taken, the tenant that has the most gives one to a tenant that has
    fewer. The place of a server that ends is held for its successor.
    """

    def __init__(
        self, rule: Rule, names: Names, proc: ProcFs, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._rule = rule
        self._names = names
        self._proc = proc
        self._clock = clock
        self._first_seen: dict[int, float] = {}
        self._places: dict[int, _Place] = {}  # by pid, in the order of admission
        self._held: dict[DataDirectory, _Held] = {}
        self._evicted: set[int] = set()  # those that are watched and lose their place now
        self._tenants: dict[int, str] = {}
        self._searches = 0
        self._offered: dict[int, int] = {}  # in which search it was last offered a place
        self._not_before: dict[int, float] = {}
        self._told: set[int] = set()  # whose refusal is in the log
        self._owners: set[str] = set()

    def pids(
        self, watched: Collection[int], passed_by: Collection[int], resting: Collection[int] = ()
    ) -> list[int]:
        """Return the servers that are watched, and those to be identified now.

        Together they are at most ``max_servers``, and one that may replace a watched one. Those passed by
        and those ``resting`` after a failure are returned too, and take no place.
        """
        found = discover.scan(self._proc, self._rule)
        now = self._clock()
        self._searches += 1
        self._tell_ignored(found.ignored)
        self._give_back(set(found.servers), watched, now)
        kept = [
            pid for pid in found.servers
            if (pid in watched and pid not in self._evicted) or pid in passed_by or pid in resting
        ]  # fmt: skip
        self._evicted.clear()
        waiting = set(found.servers).difference(kept)
        candidates = [pid for pid in waiting if now >= self._not_before.get(pid, 0.0)]
        offered = self._offer(candidates)
        for pid in set(candidates).difference(offered):
            self._refuse(pid, f"{self._rule.max_servers} servers are watched: raise max_servers")
        self._offered.update(dict.fromkeys(offered, self._searches))
        return sorted(kept + offered)

    def admit(self, target: Target, watched: Mapping[int, str]) -> Admitted | None:
        """Return the server's name; None if it is not to be watched now: ask again when ``pids`` has it.

        ``watched`` has the names of the servers that are watched, by pid.
        """
        now, pid = self._clock(), target.pid
        home = data_directory_of(self._proc, target)
        if pid not in watched:
            holder = next((other for other in watched if home and self._home(other) == home), None)
            if holder is not None:
                self._not_before[pid] = now + _DUPLICATE_S
                self._refuse(pid, f"process {holder} is on its data directory")
                return None
            settled = home is not None or target.port is not None
            if not settled and now - self._first_seen.setdefault(pid, now) < _SETTLES_S:
                return None
            if not self._has_place(pid, home, len(watched), now):
                return None
        self._places[pid] = _Place(self._tenant(pid), home)
        taken = {name for other, name in watched.items() if other != pid}
        owners = self._names.owners()
        name = self._names.give(target, taken, home)
        return Admitted(name, owners.get(name, home) == home)

    def _tell_ignored(self, ignored: Iterable[Ignored]) -> None:
        for one in ignored:
            if one.owner not in self._owners and len(self._owners) < _LOGGED:
                self._owners.add(one.owner)
                extra = {"pid": one.pid, "owner": one.owner, "remedy": one.remedy}
                _log.warning("process with a server's name ignored", extra=extra)

    def _give_back(self, servers: set[int], watched: Collection[int], now: float) -> None:
        """Take back the places of servers that are no longer watched; hold those of ended servers."""
        for pid in [
            one for one in self._places if one not in watched or one not in servers or one in self._evicted
        ]:
            place = self._places.pop(pid)
            if pid not in servers and place.home is not None:
                self._held[place.home] = _Held(place.tenant, now + _HELD_S)
        for home in [home for home, held in self._held.items() if now >= held.until]:
            del self._held[home]
        for kept in (self._first_seen, self._tenants, self._offered, self._not_before):
            for pid in kept.keys() - servers:
                del kept[pid]
        self._told &= servers

    def _offer(self, candidates: Iterable[int]) -> list[int]:
        """Choose who is offered a place, the successors of servers that have ended before all others."""
        in_turn = sorted(candidates, key=lambda pid: (self._offered.get(pid, 0), pid))
        returning = {home: pid for pid in reversed(in_turn) if (home := self._held_for(pid)) is not None}
        offered = list(returning.values())
        taken = self._taken()
        room = self._rule.max_servers - taken.total()
        for pid in self._fairly([pid for pid in in_turn if pid not in offered], taken):
            if room <= 0 and self._giving(self._tenant(pid), taken) is None:
                break
            offered.append(pid)
            room -= 1
            if room < 0:  # one may replace another's
                break
        return offered

    def _fairly(self, in_turn: Iterable[int], taken: Counter[str]) -> Iterator[int]:
        """Yield the servers, those of the tenant that would have the fewest places first."""
        waiting: defaultdict[str, list[int]] = defaultdict(list)
        for pid in in_turn:
            waiting[self._tenant(pid)].append(pid)
        places = Counter(taken)
        while waiting:
            tenant = min(waiting, key=lambda one: (places[one], self._offered.get(waiting[one][0], 0)))
            yield waiting[tenant].pop(0)
            places[tenant] += 1
            if not waiting[tenant]:
                del waiting[tenant]

    def _has_place(self, pid: int, home: DataDirectory | None, watched: int, now: float) -> bool:
        """Return whether there is a place for it; if all are taken, see that there is one the next time."""
        if home is not None and self._held.pop(home, None) is not None:
            return True
        if watched + len(self._held) < self._rule.max_servers:
            return True
        giving = self._giving(self._tenant(pid), self._taken())
        for other, held in self._held.items():
            if held.tenant == giving:
                del self._held[other]
                return True
        newest = next((one for one in reversed(self._places) if self._places[one].tenant == giving), None)
        if newest is not None:
            self._evicted.add(newest)
            self._not_before[newest] = now + _EVICTED_S
            self._refuse(newest, "it gives its place to another owner's server: raise max_servers")
        return False

    def _giving(self, tenant: str, taken: Counter[str]) -> str | None:
        """Return the tenant that has most places, if it has more than this one even without one of them."""
        most = max(taken, key=lambda one: taken[one], default=None)
        return most if most is not None and taken[most] - 1 > taken[tenant] else None

    def _taken(self) -> Counter[str]:
        """Count the places of each tenant, those that are held for it too."""
        watched = Counter(place.tenant for place in self._places.values())
        return watched + Counter(held.tenant for held in self._held.values())

    def _held_for(self, pid: int) -> DataDirectory | None:
        """Return the home on which it has begun, if a place is held for that."""
        home = working_directory_of(self._proc, pid) if self._held else None
        return home if home in self._held else None

    def _home(self, pid: int) -> DataDirectory | None:
        place = self._places.get(pid)
        return place.home if place else None

    def _tenant(self, pid: int) -> str:
        """Return whose server it is: its container's, whatever its uid there, or its user's."""
        if pid not in self._tenants:
            container = tenant_of(self._proc, pid)
            self._tenants[pid] = container or f"uid {self._uid(pid)}"
        return self._tenants[pid]

    def _uid(self, pid: int) -> int | None:
        try:
            return next(iter(self._proc.owner(pid).uids), None)
        except (ProcessLookupError, PermissionError):
            return None

    def _refuse(self, pid: int, why: str) -> None:
        if pid not in self._told:
            self._told.add(pid)
            _log.warning("server not watched", extra={"pid": pid, "reason": why})
