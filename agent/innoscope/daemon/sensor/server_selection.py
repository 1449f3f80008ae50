"""Select which servers on this host to watch, and assign names to them."""

from __future__ import annotations

import logging
import time
from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from innoscope.target import allowed_users, discover
from innoscope.target.container import is_container, tenant_or_user

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

    from innoscope.daemon.protocol.server_names import ServerNames
    from innoscope.daemon.sensor.identification import Identified
    from innoscope.target.allowed_users import Ignored, OwnerRule
    from innoscope.target.data_directory import DataDirectory
    from innoscope.target.proc import ProcFs

_log = logging.getLogger(__name__)

#: Seconds until a process that neither listens nor has entered its data directory is treated as a server.
#: A process that exits earlier, as in a crash loop, gets no series.
_SETTLE_S: Final = 10.0
#: Seconds before the sensor retries a server whose data directory is in use by a watched server.
_DUPLICATE_S: Final = 10.0
#: How long an exited server's slot is reserved, in seconds, for the next server on its data directory.
_RESERVED_S: Final = 60.0
#: Seconds until a server that lost its slot to another tenant may get a slot again.
_EVICTED_S: Final = 10.0
#: Maximum number of owners for which ignored processes are logged.
_MAX_LOGGED_OWNERS: Final = 64


#: The tenant to which all servers named in the configuration belong.
_CONFIGURED: Final = "configured"


@dataclass(frozen=True, slots=True)
class Admitted:
    """A server's name, and whether the counters stored under that name belong to the server.

    If the name is not ``final``, the server must be admitted again later.
    """

    name: str
    inherits: bool
    final: bool


@dataclass(frozen=True, slots=True)
class _Place:
    """One of ``max_servers`` slots. ``tenant`` is the container or the user of the server in the slot.

    ``listens`` tells whether the server was listening when it was last identified.
    """

    tenant: str
    home: DataDirectory | None
    working_directory: str | None
    listens: bool


@dataclass(frozen=True, slots=True)
class _Reservation:
    """The slot of an exited server, reserved for its successor until the monotonic time ``until``.

    Processes in ``working_directory`` are offered the slot first. That is only a path, which can exist in
    several containers, so the slot is given only to a server with the same data directory.
    """

    tenant: str
    until: float
    working_directory: str | None


class Admission:
    """Decides which servers a sensor watches. Only the discovery thread may use it.

    It reads only those files in /proc that do not depend on a server's file system or memory, because a file
    system may never respond. identification.py reads the others.

    Slots are shared fairly between tenants. The next slot is offered to the tenant with the fewest slots, and
    within this tenant to the server whose last offer was longest ago. If all slots are taken, the tenant with
    the most slots loses one to a tenant that has at least two fewer. Anyone can start many containers, so a
    container never takes a slot from a server outside containers, and all containers together keep at most
    half of the slots if servers outside containers need more. A server that the configuration names gets a
    slot before all others, and keeps it. The slot of an exited server is reserved for the server's successor.

    Of the processes with the same data directory, one gets a slot: the one that listens, otherwise the one
    that was identified first.
    """

    def __init__(
        self, rule: OwnerRule, names: ServerNames, proc: ProcFs, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._rule = rule
        self._names = names
        self._proc = proc
        self._clock = clock
        self._first_seen: dict[int, float] = {}
        self._places: dict[int, _Place] = {}  # by pid, in the order of admission
        self._reserved: dict[DataDirectory, _Reservation] = {}
        self._evicted: set[int] = set()  # watched servers that lose their slot in the next search
        self._configured: set[int] = set()
        self._tenants: dict[int, str] = {}
        self._searches = 0
        self._offered: dict[int, int] = {}  # the search in which a server was last offered a slot
        self._not_before: dict[int, float] = {}
        self._logged: set[int] = set()  # servers whose refusal was logged
        self._logged_owners: set[str] = set()

    def pids(
        self, watched: Collection[int], excluded: Collection[int], failed: Collection[int] = ()
    ) -> list[int]:
        """Return the pids of the watched servers, and of those to be identified in this search.

        The result has at most ``max_servers`` pids, plus two servers that may replace watched servers. It
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

    def admit(self, found: Identified, watched: Mapping[int, str]) -> Admitted | None:
        """Admit a server. Return None if that is not possible yet; retry when ``pids`` returns its pid again.

        ``watched`` maps the pids of the watched servers to their names.
        """
        now, target, home = self._clock(), found.target, found.home
        pid = target.pid
        if allowed_users.ignored(self._rule, self._proc, pid) is not None:
            return None  # the process has changed its user since the search
        if pid not in watched:
            holder = next((other for other in watched if home and self._home(other) == home), None)
            if holder is not None and found.listens and not self._places[holder].listens:
                self._evict(holder, now, f"process {pid} uses the same data directory, and listens")
                return None
            if holder is not None:
                self._not_before[pid] = now + _DUPLICATE_S
                self._refuse(pid, f"process {holder} uses the same data directory")
                return None
            settled = home is not None or found.listens
            if not settled and now - self._first_seen.setdefault(pid, now) < _SETTLE_S:
                return None
        if self._names.is_configured(target, home):
            self._configured.add(pid)
        if pid not in watched and not self._has_place(pid, home, len(watched), now):
            return None
        self._places[pid] = _Place(self._claimant(pid), home, found.working_directory, found.listens)
        taken = {name for other, name in watched.items() if other != pid}
        owners = self._names.owners()
        name = self._names.give(target, taken, home, found.port_option)
        return Admitted(name, owners.get(name, home) == home, self._names.is_final(target))

    def _log_ignored(self, ignored: Iterable[Ignored]) -> None:
        for one in ignored:
            if one.owner not in self._logged_owners and len(self._logged_owners) < _MAX_LOGGED_OWNERS:
                self._logged_owners.add(one.owner)
                extra = {"pid": one.pid, "owner": one.owner, "remedy": one.remedy}
                _log.warning("process with a server's name ignored", extra=extra)

    def _release_places(self, servers: set[int], watched: Collection[int], now: float) -> None:
        """Release the slots of servers that are not watched any more; reserve the slots of exited servers."""
        for pid in [
            one for one in self._places if one not in watched or one not in servers or one in self._evicted
        ]:
            place = self._places.pop(pid)
            if pid not in servers and place.home is not None:
                self._reserved[place.home] = _Reservation(
                    place.tenant, now + _RESERVED_S, place.working_directory
                )
        for home in [home for home, reservation in self._reserved.items() if now >= reservation.until]:
            del self._reserved[home]
        for by_pid in (self._first_seen, self._tenants, self._offered, self._not_before):
            for pid in by_pid.keys() - servers:
                del by_pid[pid]
        self._logged &= servers
        self._configured &= servers

    def _offer(self, candidates: Iterable[int]) -> list[int]:
        """Choose the servers to offer a slot to: first the servers with a reservation, then all others."""
        in_turn = sorted(candidates, key=lambda pid: (self._offered.get(pid, 0), pid))
        returning = {path: pid for pid in reversed(in_turn) if (path := self._reserved_path(pid)) is not None}
        offered = list(returning.values())
        taken = self._taken()
        room = self._rule.max_servers - taken.total()
        others = [pid for pid in in_turn if pid not in offered]
        if taken[_CONFIGURED] < self._names.configured:
            # Identify one more server per search, because any of them may be the configured one.
            offered += others[: 1 if room <= 0 else 0]
        for pid in self._fairly(others, taken):
            if room <= 0 and self._tenant_to_evict(self._claimant(pid), taken) is None:
                break
            offered.append(pid)
            room -= 1
            if room < 0:  # this server may replace another tenant's server
                break
        return list(dict.fromkeys(offered))

    def _fairly(self, in_turn: Iterable[int], taken: Counter[str]) -> Iterator[int]:
        """Yield the servers one by one, each from the tenant that has the fewest slots at that point.

        Configured servers come first. Once containers hold half of the slots, their servers come last.
        """
        waiting: defaultdict[str, list[int]] = defaultdict(list)
        for pid in in_turn:
            waiting[self._claimant(pid)].append(pid)
        places = Counter(taken)
        while waiting:
            enough = _in_containers(places).total() >= self._rule.max_servers // 2
            tenant = min(
                waiting,
                key=lambda one: (
                    one != _CONFIGURED,
                    enough and is_container(one),
                    places[one],
                    self._offered.get(waiting[one][0], 0),
                ),
            )
            yield waiting[tenant].pop(0)
            places[tenant] += 1
            if not waiting[tenant]:
                del waiting[tenant]

    def _has_place(self, pid: int, home: DataDirectory | None, watched: int, now: float) -> bool:
        """Return whether the server gets a slot: one reserved for it, a free one, or one of another tenant.

        From the tenant that must lose a slot, a reserved slot is taken immediately. If that tenant has none,
        mark its newest server for eviction, and return False.
        """
        if home is not None and self._reserved.pop(home, None) is not None:
            return True
        if watched + len(self._reserved) < self._rule.max_servers:
            return True
        loser = self._tenant_to_evict(self._claimant(pid), self._taken())
        for other, reservation in self._reserved.items():
            if reservation.tenant == loser:
                del self._reserved[other]
                return True
        newest = next((one for one in reversed(self._places) if self._places[one].tenant == loser), None)
        if newest is not None:
            self._evict(newest, now, "replaced by another owner's server: raise max_servers")
        return False

    def _evict(self, pid: int, now: float, reason: str) -> None:
        """Mark the server to lose its slot in the next search, and do not offer it a slot for a while."""
        self._evicted.add(pid)
        self._not_before[pid] = now + _EVICTED_S
        self._refuse(pid, reason)

    def _tenant_to_evict(self, tenant: str, taken: Counter[str]) -> str | None:
        """Return the tenant that loses a slot to ``tenant``; None if there is none.

        A configured server displaces a server of the largest container or, without containers, of the
        largest user. A user displaces the largest container if containers hold more than half of the slots.
        Otherwise, a user displaces the largest user, and a container the largest container, if that one has
        at least two slots more.
        """
        taken = Counter({one: number for one, number in taken.items() if one != _CONFIGURED})
        inside = _in_containers(taken)
        if tenant == _CONFIGURED:
            return max(inside or taken, key=lambda one: taken[one], default=None)
        if not is_container(tenant) and inside.total() > self._rule.max_servers // 2:
            return max(inside, key=lambda one: inside[one])
        rivals = inside if is_container(tenant) else taken - inside
        most = max(rivals, key=lambda one: rivals[one], default=None)
        return most if most is not None and taken[most] - 1 > taken[tenant] else None

    def _taken(self) -> Counter[str]:
        """Count the slots of each tenant, including reserved slots."""
        watched = Counter(place.tenant for place in self._places.values())
        return watched + Counter(reservation.tenant for reservation in self._reserved.values())

    def _reserved_path(self, pid: int) -> str | None:
        """Return the path of the process's current directory if a slot is reserved for a server there.

        Reading the link does not touch the directory itself (proc_pid_readlink in fs/proc/base.c), so a
        directory on a hung file system cannot block this call.
        """
        paths = {one.working_directory for one in self._reserved.values()} - {None}
        try:
            path = self._proc.cwd(pid) if paths else None
        except (ProcessLookupError, PermissionError):
            return None
        return path if path in paths else None

    def _home(self, pid: int) -> DataDirectory | None:
        place = self._places.get(pid)
        return place.home if place else None

    def _claimant(self, pid: int) -> str:
        """Return the tenant to which the server's slot is charged."""
        return _CONFIGURED if pid in self._configured else self.tenant(pid)

    def tenant(self, pid: int) -> str:
        """Return the server's container, or its user if it is not in a container."""
        if pid not in self._tenants:
            self._tenants[pid] = tenant_or_user(self._proc, pid)
        return self._tenants[pid]

    def _refuse(self, pid: int, reason: str) -> None:
        if pid not in self._logged:
            self._logged.add(pid)
            _log.warning("server not watched", extra={"pid": pid, "reason": reason})


def _in_containers(places: Counter[str]) -> Counter[str]:
    return Counter({tenant: number for tenant, number in places.items() if is_container(tenant)})
