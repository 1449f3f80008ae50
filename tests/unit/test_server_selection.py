"""Each owner's servers get a fair share of the slots, even if other owners start many processes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from innoscope.daemon.protocol.server_names import ServerNames
from innoscope.daemon.sensor import server_selection
from innoscope.daemon.sensor.server_selection import Admission
from innoscope.target import allowed_users, discover
from innoscope.target.allowed_users import Ignored, Rule
from innoscope.target.data_directory import DataDirectory
from innoscope.target.discover import Scan
from innoscope.target.proc import ProcFs
from unit.snapshots import target

if TYPE_CHECKING:
    from pathlib import Path

PLACES = 8
TICK_S = 2.0
BACK_OFF = 3  # ticks


@dataclass
class Process:
    """A process named like a server. If ``settles`` is false, it never listens or enters a data directory."""

    tenant: str
    home: DataDirectory | None = None
    fails: bool = False
    settles: bool = True
    refused: Ignored | None = None


class World:
    """A simulated sensor that selects servers at each tick, and backs off from those that failed."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.processes: dict[int, Process] = {}
        self.watched: dict[int, str] = {}
        self.most_offered = 0
        self._resting: dict[int, int] = {}
        self._tick = 0
        rule = Rule((), (), (), PLACES)
        self._admission = Admission(rule, ServerNames({}, ProcFs(folder)), ProcFs(folder), self._now)
        monkeypatch.setattr(discover, "scan", lambda *_: Scan(tuple(sorted(self.processes)), ()))
        monkeypatch.setattr(allowed_users, "ignored", lambda _, __, pid: self.processes[pid].refused)
        monkeypatch.setattr(server_selection, "tenant_of", lambda _, pid: self.processes[pid].tenant)
        monkeypatch.setattr(server_selection, "working_directory_of", lambda _, pid: self.processes[pid].home)
        monkeypatch.setattr(
            server_selection, "data_directory_of", lambda _, one: self.processes[one.pid].home
        )

    def _now(self) -> float:
        return self._tick * TICK_S

    def start(
        self, pid: int, tenant: str, *, inode: int = 0, fails: bool = False, settles: bool = True
    ) -> None:
        self.processes[pid] = Process(tenant, DataDirectory(1, inode, 27) if inode else None, fails, settles)

    def crowd(self, tenant: str, count: int, *, fails: bool = False, settles: bool = True) -> None:
        """Start ``count`` servers whose pids are lower than those of all others."""
        for pid in range(1000, 1000 + count):
            self.start(pid, tenant, fails=fails, settles=settles)

    def tick(self, times: int = 1) -> None:
        for _ in range(times):
            self._tick += 1
            resting = {pid for pid, until in self._resting.items() if self._tick < until}
            pids = self._admission.pids(self.watched.keys(), (), resting)
            self.most_offered = max(self.most_offered, len(set(pids) - resting))
            self.watched = {pid: name for pid, name in self.watched.items() if pid in pids}
            for pid in pids:
                if pid not in self.watched and pid not in resting:
                    self._identify(pid)
            assert len(self.watched) <= PLACES

    def _identify(self, pid: int) -> None:
        process = self.processes[pid]
        if process.fails:
            self._resting[pid] = self._tick + BACK_OFF
            return
        found = target(
            pid=pid, port=20_000 + pid if process.settles else None, socket=None, datadir=f"/{pid}"
        )
        admitted = self._admission.admit(found, self.watched)
        if admitted is not None:
            self.watched[pid] = admitted.name

    def of(self, tenant: str) -> int:
        """Return how many of the tenant's servers are watched."""
        return sum(self.processes[pid].tenant == tenant for pid in self.watched)


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    return World(tmp_path, monkeypatch)


@pytest.mark.parametrize("fails", [True, False])
def test_processes_that_are_never_watched_take_no_places(world: World, *, fails: bool) -> None:
    world.crowd("a", 3 * PLACES, fails=fails, settles=fails)
    world.start(5000, "a")
    world.tick(4)
    assert 5000 in world.watched
    assert world.most_offered <= PLACES


def test_a_process_whose_user_changes_after_the_search_is_not_watched(world: World) -> None:
    world.start(5000, "a")
    world.processes[5000].refused = Ignored(5000, "mysqld", "nobody", "host", "")
    world.tick()
    assert 5000 not in world.watched


def test_one_owner_cannot_take_all_places(world: World) -> None:
    world.crowd("a", 3 * PLACES)
    world.tick(2)
    assert world.of("a") == PLACES

    world.start(5000, "b")
    world.tick(2)

    assert 5000 in world.watched
    assert world.of("a") == PLACES - 1


def test_owners_share_the_places_evenly(world: World) -> None:
    world.crowd("a", 3 * PLACES)
    world.tick(2)
    for number in range(PLACES):
        world.start(5000 + number, "b")
    world.tick(40)
    assert (world.of("a"), world.of("b")) == (PLACES // 2, PLACES // 2)
    before = set(world.watched)
    world.tick(20)
    assert set(world.watched) == before, "servers keep replacing each other"


def test_watched_server_is_not_evicted_for_one_that_cannot_be_watched(world: World) -> None:
    world.crowd("a", PLACES)
    world.tick()
    before = set(world.watched)
    for number in range(20):
        world.start(5000 + number, f"b{number}", fails=True)
        world.start(6000 + number, f"c{number}", settles=False)
    world.tick(3)
    assert set(world.watched) == before


def test_new_server_does_not_evict_one_of_the_same_owner(world: World) -> None:
    world.crowd("a", PLACES)
    world.tick()
    before = set(world.watched)
    world.start(5000, "a")
    world.tick(10)
    assert set(world.watched) == before


def test_restarted_server_gets_its_place_back(world: World) -> None:
    world.start(5000, "a", inode=7)
    world.tick()
    world.crowd("a", 2 * PLACES)  # these pids are lower, and there are more of them than the limit
    world.tick()
    assert len(world.watched) == PLACES

    del world.processes[5000]
    world.tick(3)
    assert len(world.watched) == PLACES - 1, "its place is not reserved"
    world.start(6000, "a", inode=7)
    world.tick(2)

    assert 6000 in world.watched


def test_reserved_place_expires(world: World) -> None:
    world.start(5000, "a", inode=7)
    world.tick()
    world.crowd("a", PLACES)
    world.tick()
    del world.processes[5000]
    world.tick()
    assert world.of("a") == PLACES - 1
    world.tick(int(server_selection._RESERVED_S / TICK_S) + 1)
    assert world.of("a") == PLACES


def test_reserved_places_are_given_to_another_owner(world: World) -> None:
    for number in range(PLACES):
        world.start(1000 + number, "a", inode=100 + number)
    world.tick()
    world.processes.clear()
    world.tick()
    world.start(5000, "b")
    world.tick()
    assert set(world.watched) == {5000}


def test_state_of_ended_processes_is_removed(world: World) -> None:
    for number in range(200):
        world.start(1000 + number, f"t{number % 7}", inode=1 + number)
        world.tick()
        world.processes.pop(1000 + number)
    world.tick(int(server_selection._RESERVED_S / TICK_S) + 1)
    state = {name: value for name, value in vars(world._admission).items() if isinstance(value, dict | set)}
    assert {"_first_seen", "_places", "_reserved", "_tenants"} <= state.keys()
    assert not any(state.values()), state
