"""Kill sensor and agent while probes are compiled, attached or counting: nothing of ours is left.

In turn dies a sensor, whose agent goes on, and an agent with a sensor of its own. Half of the moments
are early: before the first probe counts. They see no server but this one: the
more are probed, the longer dying takes.
"""

from __future__ import annotations

import os
import random
import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from innoscope.daemon.protocol.client import SensorClient, SensorDown
from safety.agenting import Running, Scrape, falls
from safety.contained import ContainedServer, beside
from safety.leftovers import breakpoints, orphans_now
from safety.sensing import Sensing
from safety.well import assert_well
from scale import count
from workloads import Fsync

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

#: Of sensors and agents together.
KILLS = count(quick=4, full=50)
SEED = 20261121
#: Inherited by all processes that are started while it is set.
MARK = "INNOSCOPE_KILLED_PROBING"
ATTACHED_S = 60
#: The kernel takes off the probes of a process that ends one after the other, some 100 ms each, under a lock
#: that all who probe on this machine share.
GONE_S = 60
#: Few probes are off soon, which leaves time for more kills; an agent's own sensor has all of them.
FEW = ("--family", "redo", "--family", "fsync", "--family", "row_lock")


@dataclass
class Victim:
    """Who is killed, where its sensor answers, and how long it takes from the start to the first probe."""

    process: Running | Sensing
    socket: Path
    seconds: float = 0.0


@dataclass
class Tally:
    """When the kills came, and how long it took until nothing was left."""

    early: int = 0
    attached: int = 0
    gone: list[float] = field(default_factory=list)


class Onlooker:
    """The agent that lives on; its counters never fall."""

    def __init__(self, agent: Running) -> None:
        self._agent = agent
        self._last = agent.scrape()

    def until(self, holds: Callable[[Scrape], bool]) -> Scrape:
        """Scrape until it is so, and compare with the last time."""
        now = self._agent.until(holds)
        assert falls(self._last, now) == {}
        self._last = now
        return now


@pytest.fixture
def server() -> Iterator[ContainedServer]:
    server = ContainedServer("mysql-5.6.24")
    with server, Fsync(server, 2):
        yield server


@pytest.mark.timeout(1800)
def test_killed_while_it_probes(server: ContainedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    draw, tally = random.Random(SEED), Tally()  # noqa: S311
    print(f"\nseed {SEED}")
    with ExitStack() as stack:
        sensing = Sensing(*FEW, under=beside(server))
        stack.push(sensing)
        agent = stack.enter_context(Running(server, sensor=sensing.path, under=beside(server)))
        own = Running(server, by_hand=True, under=beside(server))
        stack.push(own)
        monkeypatch.setenv(MARK, str(os.getpid()))
        victims = Victim(sensing, sensing.path), Victim(own, own.sensor)
        onlooker = Onlooker(agent)
        for number in range(KILLS):
            victim, early = victims[number % 2], number % 4 >= 2
            _start(victim, server, draw, early=early)
            tally.early += early
            if victim.process is sensing and not early:
                onlooker.until(_probed)
            tally.attached += _attached(victim, server)
            tally.gone.append(_kill(victim, server))
            now = onlooker.until(lambda scrape: scrape.value("sensor_up") == 0)
            assert (now.why("probes"), now.value("sql_up")) == ("gone", 1)
        sensing.start()
        onlooker.until(_probed)
    print(
        f"{len(tally.gone)} kills, {tally.early} of them early, {tally.attached} with probes attached; "
        f"nothing was left after {max(tally.gone):.1f} s at most"
    )
    assert tally.attached >= KILLS // 2


def _start(victim: Victim, server: ContainedServer, draw: random.Random, *, early: bool) -> None:
    """And return at the moment at which it is to die."""
    began = time.monotonic()
    victim.process.start(wait=False)
    if early:
        time.sleep(draw.uniform(0, victim.seconds))
    else:
        _wait_until_attached(victim, server)
        victim.seconds = time.monotonic() - began
        time.sleep(draw.uniform(0, 0.5))


def _kill(victim: Victim, server: ContainedServer) -> float:
    """Seconds until nothing of it was left."""
    known = _marked()
    began = time.monotonic()
    victim.process.kill()
    assert_well(server)
    while left := _left(server, known):
        assert time.monotonic() - began < GONE_S, f"still there: {left}"
        time.sleep(0.05)
    assert_well(server)
    return time.monotonic() - began


def _probed(scrape: Scrape) -> bool:
    return scrape.why("probes") is None and any(scrape.named("probe_attached").values())


def _left(server: ContainedServer, known: set[Path]) -> list[object]:
    """Processes, programs and breakpoints of ours."""
    dying = [process for process in known if _lives(process)]
    return [*(_marked() - known), *dying, *orphans_now(), *breakpoints(server.pid)]


def _marked() -> set[Path]:
    """Processes that were started by us since the mark was set."""
    mark = f"{MARK}={os.getpid()}".encode()
    found = set()
    for file in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):  # it has ended
            if mark in file.read_bytes():
                found.add(file.parent)
    return found


def _lives(process: Path) -> bool:
    """Also while it closes what it had open, without an environment; not as a zombie that nobody reaps."""
    with suppress(OSError):
        states = [file.read_text().rpartition(")")[2].split()[0] for file in process.glob("task/*/stat")]
        return any(state not in "ZX" for state in states)
    return False


def _wait_until_attached(victim: Victim, server: ContainedServer) -> None:
    deadline = time.monotonic() + ATTACHED_S
    while not _attached(victim, server):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def _attached(victim: Victim, server: ContainedServer) -> bool:
    with suppress(SensorDown):
        probes = SensorClient(str(victim.socket)).probes().get(str(server.port), [])
        return any(probe["state"] == "attached" for probe in probes)
    return False
