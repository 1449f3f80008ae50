"""Select which servers on this host to watch, and assign names to them."""

from __future__ import annotations

import logging
import time
from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from innoscope.target import allowed_users, discover
from innoscope.target.container import tenant_of
from innoscope.target.data_directory import data_directory_of, working_directory_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

    from innoscope.daemon.protocol.server_names import ServerNames
    from innoscope.target.allowed_users import Ignored, Rule
    from innoscope.target.data_directory import DataDirectory
    from innoscope.target.model import Target
    from innoscope.target.proc import ProcFs

_log = logging.getLogger(__name__)

#: Seconds until a process that neither listens nor has entered its data directory is treated as a server.
#: A process that exits earlier, as in a crash loop, gets no series.
_SETTLE_S: Final = 10.0
#: Seconds before the sensor retries a server whose data directory a watched server uses.
_DUPLICATE_S: Final = 10.0
#: Seconds for which an exited server's slot is reserved for the next server on its data directory.
_RESERVED_S: Final = 60.0
#: Seconds until a server that lost its slot to another tenant may get a slot again.
_EVICTED_S: Final = 10.0
#: Maximum number of owners for which ignored processes are logged.
_MAX_LOGGED_OWNERS: Final = 64


@dataclass(frozen=True, slots=True)
class Admitted:
    """A server's name, and whether the counters stored under that name belong to the server."""

    name: str
    inherits: bool


@dataclass(frozen=True, slots=True)
class _Place:
    """One of ``max_servers`` slots. ``tenant`` is the container or the user of the server in the slot."""

    tenant: str
    home: DataDirectory | None


@dataclass(frozen=True, slots=True)
class _Reservation:
    """The slot of an exited server, reserved for its successor until the monotonic time ``until``."""

    tenant: str
    until: float


class Admission:
    """Decides which servers a sensor watches. Only the discovery thread may use it.

    Slots are shared fairly between tenants. The next slot is offered to the tenant with the fewest slots, and
    within this tenant to the server whose last offer was longest ago. If all slots are taken, the tenant with
    the most slots loses one to a tenant with fewer slots. The slot of an exited server is reserved for the
    server's successor.
    """

    def __init__(
        self, rule: Rule, names: ServerNames, proc: ProcFs, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._rule = rule
        self._names = names
        self._proc = proc
        self._clock = clock
        self._first_seen: dict[int, float] = {}
        self._places: dict[int, _Place] = {}  # by pid, in the order of admission
        self._reserved: dict[DataDirectory, _Reservation] = {}
        self._evicted: set[int] = set()  # watched servers that lose their slot in the next search
        self._tenants: dict[int, str] = {}
        self._searches = 0
        self._offered: dict[int, int] = {}  # the search in which a server was last offered a slot
        self._not_before: dict[int, float] = {}
        self._logged: set[int] = set()  # servers whose refusal was logged
        self._logged_owners: set[str] = set()

    def pids(
        self, watched: Collection[int], excluded: Collection[int], failed: Collection[int] = ()
    ) -> list[int]:
        """Return the pids of the watched servers, and of those to be identified now.

        The result has at most ``max_servers`` pids, plus one server that may replace a watched server. It
        also includes servers that are ``excluded`` by configuration, or that ``failed`` and are not due for a
        retry; these servers need no slot.
        """
        found = discover.scan(self._proc, self._rule)
        now = self._clock()
        self._searches += 1
        self._log_ignored(found.ignored)
        self._release_places(set(found.servers), watched, now)
        decided = [
            pid for pid in found.servers
            if (pid in watched and pid not in self._evicted) or pid in excluded or pid in failed
        ]  # fmt: skip
        self._evicted.clear()
        waiting = set(found.servers).difference(decided)
        candidates = [pid for pid in waiting if now >= self._not_before.get(pid, 0.0)]
        offered = self._offer(candidates)
        for pid in set(candidates).difference(offered):
            self._refuse(pid, f"{self._rule.max_servers} servers are watched: raise max_servers")
        self._offered.update(dict.fromkeys(offered, self._searches))
        return sorted(decided + offered)

    def admit(self, target: Target, watched: Mapping[int, str]) -> Admitted | None:
        """Return the server's name; None if it cannot be watched now (retry when ``pids`` returns its pid).

        ``watched`` maps the pids of the watched servers to their names.
        """
        now, pid = self._clock(), target.pid
        if allowed_users.ignored(self._rule, self._proc, pid) is not None:
            return None  # the process has changed its user since the search
        home = data_directory_of(self._proc, target)
        if pid not in watched:
            holder = next((other for other in watched if home and self._home(other) == home), None)
            if holder is not None:
                self._not_before[pid] = now + _DUPLICATE_S
                self._refuse(pid, f"process {holder} uses the same data directory")
                return None
            settled = home is not None or target.port is not None
            if not settled and now - self._first_seen.setdefault(pid, now) < _SETTLE_S:
                return None
            if not self._has_place(pid, home, len(watched), now):
                return None
        self._places[pid] = _Place(self._tenant(pid), home)
        taken = {name for other, name in watched.items() if other != pid}
        owners = self._names.owners()
        name = self._names.give(target, taken, home)
        return Admitted(name, owners.get(name, home) == home)

    def _log_ignored(self, ignored: Iterable[Ignored]) -> None:
        for one in ignored:
            if one.owner not in self._logged_owners and len(self._logged_owners) < _MAX_LOGGED_OWNERS:
                self._logged_owners.add(one.owner)
                extra = {"pid": one.pid, "owner": one.owner, "remedy": one.remedy}
                _log.warning("process with a server's name ignored", extra=extra)

    def _release_places(self, servers: set[int], watched: Collection[int], now: float) -> None:
        """Release the slots of servers that are no longer watched; reserve the slots of exited servers."""
        for pid in [
            one for one in self._places if one not in watched or one not in servers or one in self._evicted
        ]:
            place = self._places.pop(pid)
            if pid not in servers and place.home is not None:
                self._reserved[place.home] = _Reservation(place.tenant, now + _RESERVED_S)
        for home in [home for home, reservation in self._reserved.items() if now >= reservation.until]:
            del self._reserved[home]
        for by_pid in (self._first_seen, self._tenants, self._offered, self._not_before):
            for pid in by_pid.keys() - servers:
                del by_pid[pid]
        self._logged &= servers

    def _offer(self, candidates: Iterable[int]) -> list[int]:
        """Choose the servers to offer a slot to: first the servers with a reservation, then all others."""
        in_turn = sorted(candidates, key=lambda pid: (self._offered.get(pid, 0), pid))
        returning = {home: pid for pid in reversed(in_turn) if (home := self._reserved_home(pid)) is not None}
        offered = list(returning.values())
        taken = self._taken()
        room = self._rule.max_servers - taken.total()
        for pid in self._fairly([pid for pid in in_turn if pid not in offered], taken):
            if room <= 0 and self._tenant_to_evict(self._tenant(pid), taken) is None:
                break
            offered.append(pid)
            room -= 1
            if room < 0:  # this server may replace another tenant's server
                break
        return offered

    def _fairly(self, in_turn: Iterable[int], taken: Counter[str]) -> Iterator[int]:
        """Yield the servers one by one, each from the tenant that has the fewest slots at that point."""
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
        """Return whether the server gets a slot: a free one, or one reserved for it or the largest tenant.

        If there is none, mark the newest server of the largest tenant for eviction.
        """
        if home is not None and self._reserved.pop(home, None) is not None:
            return True
        if watched + len(self._reserved) < self._rule.max_servers:
            return True
        largest = self._tenant_to_evict(self._tenant(pid), self._taken())
        for other, reservation in self._reserved.items():
            if reservation.tenant == largest:
                del self._reserved[other]
                return True
        newest = next((one for one in reversed(self._places) if self._places[one].tenant == largest), None)
        if newest is not None:
            self._evicted.add(newest)
            self._not_before[newest] = now + _EVICTED_S
            self._refuse(newest, "replaced by another owner's server: raise max_servers")
        return False

    def _tenant_to_evict(self, tenant: str, taken: Counter[str]) -> str | None:
        """Return the tenant with the most slots, if it has at least two more than ``tenant``; else None."""
        most = max(taken, key=lambda one: taken[one], default=None)
        return most if most is not None and taken[most] - 1 > taken[tenant] else None

    def _taken(self) -> Counter[str]:
        """Count the slots of each tenant, including reserved slots."""
        watched = Counter(place.tenant for place in self._places.values())
        return watched + Counter(reservation.tenant for reservation in self._reserved.values())

    def _reserved_home(self, pid: int) -> DataDirectory | None:
        """Return the process's data directory if a slot is reserved for that directory."""
        home = working_directory_of(self._proc, pid) if self._reserved else None
        return home if home in self._reserved else None

    def _home(self, pid: int) -> DataDirectory | None:
        place = self._places.get(pid)
        return place.home if place else None

    def _tenant(self, pid: int) -> str:
        """Return the server's container, or its user if it is not in a container."""
        if pid not in self._tenants:
            container = tenant_of(self._proc, pid)
            self._tenants[pid] = container or f"uid {self._uid(pid)}"
        return self._tenants[pid]

    def _uid(self, pid: int) -> int | None:
        try:
            return next(iter(self._proc.owner(pid).uids), None)
        except (ProcessLookupError, PermissionError):
            return None

    def _refuse(self, pid: int, reason: str) -> None:
        if pid not in self._logged:
            self._logged.add(pid)
            _log.warning("server not watched", extra={"pid": pid, "reason": reason})
