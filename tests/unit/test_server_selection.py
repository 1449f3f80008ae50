"""Each owner's servers get a fair share of the slots, even if other owners start many processes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from innoscope.daemon.protocol.server_names import ServerNames
from innoscope.daemon.sensor import server_selection
from innoscope.daemon.sensor.identification import Identified
from innoscope.daemon.sensor.server_selection import Admission
from innoscope.target import allowed_users, discover
from innoscope.target.allowed_users import Ignored, OwnerRule
from innoscope.target.data_directory import DataDirectory
from innoscope.target.discover import Scan
from innoscope.target.proc import ProcFs
from unit.snapshots import target

if TYPE_CHECKING:
    from pathlib import Path

PLACES = 8
TICK_S = 2.0
BACK_OFF = 3  # ticks
#: The pid of a server that the configuration names.
NAMED = 9000


@dataclass
class Process:
    """A process named like a server. If ``listens`` is false, it does not listen."""

    tenant: str
    home: DataDirectory | None = None
    fails: bool = False
    listens: bool = True
    refused: Ignored | None = None


class World:
    """A simulated sensor that selects servers at each tick, and backs off from those that failed."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.processes: dict[int, Process] = {}
        self.watched: dict[int, str] = {}
        self.most_offered = 0
        self._resting: dict[int, int] = {}
        self._tick = 0
        rule = OwnerRule((), (), (), PLACES)
        self._admission = Admission(
            rule, ServerNames({str(NAMED): "prod"}, ProcFs(folder)), ProcFs(folder), self._now
        )
        monkeypatch.setattr(discover, "scan", lambda *_: Scan(tuple(sorted(self.processes)), ()))
        monkeypatch.setattr(allowed_users, "ignored", lambda _, __, pid: self.processes[pid].refused)
        monkeypatch.setattr(server_selection, "tenant_or_user", lambda _, pid: self.processes[pid].tenant)
        monkeypatch.setattr(ProcFs, "cwd", lambda _, pid: self._cwd(pid) or "/")

    def _now(self) -> float:
        return self._tick * TICK_S

    def start(
        self, pid: int, tenant: str, *, inode: int = 0, fails: bool = False, listens: bool = True
    ) -> None:
        self.processes[pid] = Process(tenant, DataDirectory(1, inode, 27) if inode else None, fails, listens)

    def crowd(self, tenant: str, count: int, *, fails: bool = False, listens: bool = True) -> None:
        """Start ``count`` servers whose pids are lower than all others."""
        for pid in range(1000, 1000 + count):
            self.start(pid, tenant, fails=fails, listens=listens)

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
            pid=pid, port=20_000 + pid if process.listens else None, socket=None, datadir=f"/{pid}"
        )
        identified = Identified(found, process.home, None, self._cwd(pid), process.listens)
        admitted = self._admission.admit(identified, self.watched)
        if admitted is not None:
            self.watched[pid] = admitted.name

    def _cwd(self, pid: int) -> str | None:
        home = self.processes[pid].home
        return f"/{home.inode}" if home else None

    def of(self, tenant: str) -> int:
        """Return how many of the tenant's servers are watched."""
        return sum(self.processes[pid].tenant == tenant for pid in self.watched)


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    return World(tmp_path, monkeypatch)


def test_listening_server_replaces_another_process_on_its_data_directory(world: World) -> None:
    world.start(5000, "a", inode=7, listens=False)
    world.start(5001, "a", inode=7, listens=False)
    world.tick()
    assert set(world.watched) == {5000}

    world.processes[5001].listens = True
    world.tick(8)
    assert set(world.watched) == {5001}

    world.tick(20)
    assert set(world.watched) == {5001}


@pytest.mark.parametrize("fails", [True, False])
def test_processes_that_are_never_watched_take_no_places(world: World, *, fails: bool) -> None:
    world.crowd("a", 3 * PLACES, fails=fails, listens=fails)
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
        world.start(6000 + number, f"c{number}", listens=False)
    world.tick(3)
    assert set(world.watched) == before


def test_new_server_does_not_evict_one_of_the_same_owner(world: World) -> None:
    world.crowd("a", PLACES)
    world.tick()
    before = set(world.watched)
    world.start(5000, "a")
    world.tick(10)
    assert set(world.watched) == before


def test_containers_do_not_evict_servers_outside_containers(world: World) -> None:
    for pid in range(5000, 5006):
        world.start(pid, "uid 27")
    world.tick()
    for number in range(40):
        world.start(1000 + number, f"container/{number}")
    world.tick(20)
    assert world.of("uid 27") == 6
    assert len(world.watched) == PLACES


@pytest.mark.parametrize("first", [True, False])
def test_containers_keep_at_most_half_of_the_places(world: World, *, first: bool) -> None:
    """Start the containers before the servers outside containers, or at the same time."""
    for number in range(40):
        world.start(1000 + number, f"container/{number}")
    if first:
        world.tick(3)
        assert len(world.watched) == PLACES, "containers may use free places"
    for pid in range(5000, 5010):
        world.start(pid, "uid 27")
    world.tick(1 if not first else 20)
    assert world.of("uid 27") == PLACES // 2
    before = set(world.watched)
    world.tick(20)
    assert set(world.watched) == before, "servers keep replacing each other"


def test_containers_share_their_places(world: World) -> None:
    for pid in range(1000, 1000 + PLACES):
        world.start(pid, "container/a")
    world.tick()
    world.start(5000, "container/b")
    world.tick(2)
    assert 5000 in world.watched


@pytest.mark.parametrize("crowd", ["uid 27", "container/a"])
@pytest.mark.parametrize("own", ["uid 27", "container/a"])
def test_configured_server_gets_and_keeps_a_place(world: World, crowd: str, own: str) -> None:
    world.crowd(crowd, 3 * PLACES)
    world.tick(3)
    world.start(NAMED, own)
    world.tick(2 * PLACES + 3)  # each search identifies at most one server without a slot
    assert world.watched[NAMED] == "prod"
    assert len(world.watched) == PLACES
    for number in range(20):
        world.start(6000 + number, f"uid {number}")
        world.start(7000 + number, f"container/{number}")
    for _ in range(20):
        world.tick()
        assert NAMED in world.watched


def test_configured_server_takes_the_place_of_a_container_first(world: World) -> None:
    world.start(1, "container/a")
    for pid in range(5000, 5000 + PLACES - 1):
        world.start(pid, "uid 27")
    world.tick(2)
    world.start(NAMED, "uid 27")
    world.tick(4)
    assert 1 not in world.watched
    assert len(world.watched) == PLACES


def test_restarted_server_gets_its_place_back(world: World) -> None:
    world.start(5000, "a", inode=7)
    world.tick()
    world.crowd("a", 2 * PLACES)  # more servers than the limit, all with lower pids
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
