"""Places are fair: nobody's servers keep another one's out, however many there are and whatever they do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from innoscope.daemon.protocol.server_names import ServerNames
from innoscope.daemon.sensor import admission
from innoscope.daemon.sensor.admission import Admission
from innoscope.target import discover
from innoscope.target.data_directory import DataDirectory
from innoscope.target.discover import Scan
from innoscope.target.ownership import Rule
from innoscope.target.proc import ProcFs
from unit.dumps import target

if TYPE_CHECKING:
    from pathlib import Path

PLACES = 8
TICK_S = 2.0
BACK_OFF = 3  # ticks


@dataclass
class Process:
    """One with a server's name. One that never settles neither listens nor enters a data directory."""

    tenant: str
    home: DataDirectory | None = None
    fails: bool = False
    settles: bool = True


class World:
    """A sensor's ticks without a sensor: who is watched, by pid, and who rests after a failure."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.processes: dict[int, Process] = {}
        self.watched: dict[int, str] = {}
        self.most_offered = 0
        self._resting: dict[int, int] = {}
        self._tick = 0
        rule = Rule((), (), (), PLACES)
        self._admission = Admission(rule, ServerNames({}, ProcFs(folder)), ProcFs(folder), self._now)
        monkeypatch.setattr(discover, "scan", lambda *_: Scan(tuple(sorted(self.processes)), ()))
        monkeypatch.setattr(admission, "tenant_of", lambda _, pid: self.processes[pid].tenant)
        monkeypatch.setattr(admission, "working_directory_of", lambda _, pid: self.processes[pid].home)
        monkeypatch.setattr(admission, "data_directory_of", lambda _, one: self.processes[one.pid].home)

    def _now(self) -> float:
        return self._tick * TICK_S

    def start(
        self, pid: int, tenant: str, *, inode: int = 0, fails: bool = False, settles: bool = True
    ) -> None:
        self.processes[pid] = Process(tenant, DataDirectory(1, inode, 27) if inode else None, fails, settles)

    def crowd(self, tenant: str, count: int, *, fails: bool = False, settles: bool = True) -> None:
        """Start so many servers, with the lowest pids."""
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
        """How many servers of it are watched."""
        return sum(self.processes[pid].tenant == tenant for pid in self.watched)


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    return World(tmp_path, monkeypatch)


@pytest.mark.parametrize("fails", [True, False])
def test_processes_that_are_never_watched_keep_nobody_out(world: World, *, fails: bool) -> None:
    """Those that fail rest and take no place; those that do not settle are asked in turn."""
    world.crowd("a", 3 * PLACES, fails=fails, settles=fails)
    world.start(5000, "a")
    world.tick(4)
    assert 5000 in world.watched
    assert world.most_offered <= PLACES


def test_a_crowd_gives_a_place_to_another_owner_s_server(world: World) -> None:
    world.crowd("a", 3 * PLACES)
    world.tick(2)
    assert world.of("a") == PLACES

    world.start(5000, "b")
    world.tick(2)

    assert 5000 in world.watched
    assert world.of("a") == PLACES - 1


def test_owners_share_the_places(world: World) -> None:
    world.crowd("a", 3 * PLACES)
    world.tick(2)
    for number in range(PLACES):
        world.start(5000 + number, "b")
    world.tick(40)
    assert (world.of("a"), world.of("b")) == (PLACES // 2, PLACES // 2)
    before = set(world.watched)
    world.tick(20)
    assert set(world.watched) == before, "nobody is turned out for ever"


def test_one_that_is_turned_out_for_nobody_is_not_turned_out(world: World) -> None:
    """Who cannot be watched takes no place from one who is."""
    world.crowd("a", PLACES)
    world.tick()
    before = set(world.watched)
    for number in range(20):
        world.start(5000 + number, f"b{number}", fails=True)
        world.start(6000 + number, f"c{number}", settles=False)
    world.tick(3)
    assert set(world.watched) == before


def test_newcomers_of_one_owner_turn_nobody_out(world: World) -> None:
    world.crowd("a", PLACES)
    world.tick()
    before = set(world.watched)
    world.start(5000, "a")
    world.tick(10)
    assert set(world.watched) == before


def test_a_server_that_is_restarted_has_its_place_again(world: World) -> None:
    world.start(5000, "a", inode=7)
    world.tick()
    world.crowd("a", 2 * PLACES)  # with lower pids, and more than there are places
    world.tick()
    assert len(world.watched) == PLACES

    del world.processes[5000]
    world.tick(3)
    assert len(world.watched) == PLACES - 1, "its place is held"
    world.start(6000, "a", inode=7)
    world.tick(2)

    assert 6000 in world.watched


def test_a_place_is_not_held_for_ever(world: World) -> None:
    world.start(5000, "a", inode=7)
    world.tick()
    world.crowd("a", PLACES)
    world.tick()
    del world.processes[5000]
    world.tick()
    assert world.of("a") == PLACES - 1
    world.tick(int(admission._RESERVED_S / TICK_S) + 1)
    assert world.of("a") == PLACES


def test_held_places_are_given_first(world: World) -> None:
    """Servers that end keep no place from another owner's."""
    for number in range(PLACES):
        world.start(1000 + number, "a", inode=100 + number)
    world.tick()
    world.processes.clear()
    world.tick()
    world.start(5000, "b")
    world.tick()
    assert set(world.watched) == {5000}


def test_what_is_known_of_processes_goes_with_them(world: World) -> None:
    for number in range(200):
        world.start(1000 + number, f"t{number % 7}", inode=1 + number)
        world.tick()
        world.processes.pop(1000 + number)
    world.tick(int(admission._RESERVED_S / TICK_S) + 1)
    kept = vars(world._admission)
    names = (
        "_first_seen",
        "_places",
        "_reserved",
        "_tenants",
        "_offered",
        "_not_before",
        "_logged",
        "_evicted",
    )
    assert {name: len(kept[name]) for name in names} == dict.fromkeys(names, 0)
