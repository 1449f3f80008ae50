"""Limit the duration and the CPU time of the snapshots of all servers."""

from __future__ import annotations

import math
import threading
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from innoscope.common.workers import group_of

if TYPE_CHECKING:
    from collections.abc import Collection, Hashable

#: CPU seconds per second for the snapshots of all servers. The sensor's systemd unit allows 2.
_CORES: Final = 1.0
#: Minimum time between the starts of a server's snapshots, as a multiple of the last one's duration.
#: Snapshots of up to 15 s therefore occupy a thread for at most a quarter of the time.
_DURATIONS: Final = 4
#: Upper limit of that minimum time, in seconds. A snapshot can take hours if a file system hangs.
_LONGEST_PAUSE_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class _Demand:
    """The CPU seconds per second that a server's snapshots need at the normal interval.

    ``path`` contains the group of its turn, its turn and the server.
    """

    path: tuple[str, str, Hashable]
    cores: float


class SnapshotBudget:
    """Decides how often each server's snapshots are taken. Thread-safe.

    If the snapshots of all servers need more than ``cores``, the CPU time is shared among the groups of turns
    (common/workers.py), then among the turns of each group, then among the servers of each turn.
    At each level, demands below an equal share are met, and the others share the remainder equally.
    """

    def __init__(self, cores: float = _CORES) -> None:
        self._cores = cores
        self._lock = threading.Lock()
        self._demands: dict[Hashable, _Demand] = {}

    def pause_s(
        self, server: Hashable, turn: str, interval_s: float, duration_s: float, cpu_s: float
    ) -> float:
        """Return the seconds between the starts of the last and the next snapshot, at least ``interval_s``.

        The last snapshot took ``duration_s`` seconds, and ``cpu_s`` seconds of CPU time.
        """
        demand = _Demand((group_of(turn) or turn, turn, server), cpu_s / interval_s)
        with self._lock:
            self._demands[server] = demand
            share = self._share(demand)
        slow = min(_DURATIONS * duration_s, _LONGEST_PAUSE_S)
        return max(interval_s, slow, cpu_s / share)

    def forget(self, server: Hashable) -> None:
        """Forget a server whose snapshots have ended."""
        with self._lock:
            self._demands.pop(server, None)

    def _share(self, demand: _Demand) -> float:
        """Return the CPU seconds per second that the server may use; infinity if all servers need less."""
        demands = list(self._demands.values())
        if sum(one.cores for one in demands) <= self._cores:
            return math.inf
        share = self._cores
        for part in range(len(demand.path)):
            needed: defaultdict[Hashable, float] = defaultdict(float)
            for one in demands:
                needed[one.path[part]] += one.cores
            share = _equal_share(needed.values(), share)
            demands = [one for one in demands if one.path[part] == demand.path[part]]
        return share


def _equal_share(demands: Collection[float], total: float) -> float:
    """Return the share for each demand that exceeds an equal share; infinity if all demands can be met."""
    for number, needed in enumerate(sorted(demands)):
        share = total / (len(demands) - number)
        if needed > share:
            return share
        total -= needed
    return math.inf
