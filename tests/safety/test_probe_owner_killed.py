"""Test that no probe remains if the sensor or the agent is killed while its probes start or count.

The kills alternate between a sensor whose agent keeps running and an agent with its own sensor. Half
of the kills happen before the first probe counts. Only one server is visible to the processes, because
probes on other servers would delay their exit.
"""

from __future__ import annotations

import os
import random
import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass
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
from waiting import until
from workloads import Fsync

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

#: Total number of kills of sensors and agents.
KILLS = count(quick=4, full=50)
SEED = 20261121
#: An environment variable that marks all processes started while it is set.
MARK = "INNOSCOPE_KILLED_PROBING"
ATTACHED_S = 60
#: Maximum seconds until nothing remains: the kernel detaches the probes of an exited process one at a time,
#: in up to 100 ms each, under a lock that all processes with probes share.
GONE_S = 60
#: The families that the sensor attaches: few, so that the kernel detaches them quickly and the test has time
#: for more kills. An agent's own sensor attaches all probes.
FEW = ("--family", "redo", "--family", "fsync", "--family", "row_lock")


@dataclass
class Victim:
    """The process to kill, its sensor's socket, and the seconds from start to the first attached probe."""

    process: Running | Sensing
    socket: Path
    seconds: float = 0.0


class Onlooker:
    """The agent that keeps running. Its counters must never decrease."""

    def __init__(self, agent: Running) -> None:
        self._agent = agent
        self._last = agent.scrape()

    def until(self, holds: Callable[[Scrape], bool]) -> Scrape:
        """Scrape until the condition holds, and compare the counters with those of the previous scrape."""
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
def test_nothing_remains_after_a_kill(server: ContainedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    draw, attached = random.Random(SEED), 0  # noqa: S311
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
            if victim.process is sensing and not early:
                onlooker.until(_probed)
            attached += _attached(victim, server)
            _kill(victim, server)
            now = onlooker.until(lambda scrape: (scrape.value("sensor_up"), scrape.value("sql_up")) == (0, 1))
            assert now.why("probes") == "gone"
        sensing.start()
        onlooker.until(_probed)
    assert attached >= KILLS // 2


def _start(victim: Victim, server: ContainedServer, draw: random.Random, *, early: bool) -> None:
    """Start the process, and wait until it is time to kill it."""
    began = time.monotonic()
    victim.process.start(wait=False)
    if early:
        time.sleep(draw.uniform(0, victim.seconds))
    else:
        _wait_until_attached(victim, server)
        victim.seconds = time.monotonic() - began
        time.sleep(draw.uniform(0, 0.5))


def _kill(victim: Victim, server: ContainedServer) -> None:
    """Kill the process and wait until none of its processes, programs and breakpoints remains."""
    known = _marked()
    began = time.monotonic()
    victim.process.kill()
    assert_well(server)
    while left := _left(server, known):
        assert time.monotonic() - began < GONE_S, f"remaining: {left}"
        time.sleep(0.05)
    assert_well(server)


def _probed(scrape: Scrape) -> bool:
    return scrape.why("probes") is None and any(scrape.named("probe_attached").values())


def _left(server: ContainedServer, known: set[Path]) -> list[object]:
    """Return the remaining processes, programs and breakpoints."""
    dying = [process for process in known if _lives(process)]
    return [*(_marked() - known), *dying, *orphans_now(), *breakpoints(server.pid)]


def _marked() -> set[Path]:
    """Return the processes that were started while the mark was set."""
    mark = f"{MARK}={os.getpid()}".encode()
    found = set()
    for file in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):  # the process has exited
            if mark in file.read_bytes():
                found.add(file.parent)
    return found


def _lives(process: Path) -> bool:
    """Return whether a process is running or still closing its descriptors; False for a zombie."""
    with suppress(OSError):
        states = [file.read_text().rpartition(")")[2].split()[0] for file in process.glob("task/*/stat")]
        return any(state not in "ZX" for state in states)
    return False


def _wait_until_attached(victim: Victim, server: ContainedServer) -> None:
    until(lambda: _attached(victim, server), within_s=ATTACHED_S)


def _attached(victim: Victim, server: ContainedServer) -> bool:
    with suppress(SensorDown):
        probes = SensorClient(str(victim.socket), timeout=10).probes().get(str(server.port), [])
        return any(probe["state"] == "attached" for probe in probes)
    return False
