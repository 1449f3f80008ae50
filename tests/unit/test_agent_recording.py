"""The agent's recorder: its gatherings and a made sensor's looks, cut to any time."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest

from innoscope.daemon.agent import config
from innoscope.daemon.agent.collect import Scrape, ServerState
from innoscope.daemon.agent.recorder import Recorders
from innoscope.daemon.agent.servers import Servers
from innoscope.daemon.protocol.client import SensorDown
from innoscope.diagnose.verdict import judge
from innoscope.metrics import registry
from innoscope.metrics.merge import Series
from innoscope.sampling.snapshot_history import CLIENT, ObservedStack, SnapshotSummary
from unit.test_target_sql import target

if TYPE_CHECKING:
    from collections.abc import Mapping

NAME = "orders"
STACK = ("futex", "lock_wait_suspend_thread")


class MadeSensor:
    """A look a second with ten threads that wait for row locks."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, bool]] = []
        self.down = False

    def looks(
        self, server: str, begin: float, end: float, *, stacks: bool
    ) -> tuple[tuple[SnapshotSummary, ...], tuple[ObservedStack, ...]]:
        self.asked.append((server, stacks))
        if self.down:
            raise SensorDown("it is away", remedy="start it")
        at = [float(second) for second in range(2000) if begin <= second <= end]
        looks = tuple(SnapshotSummary(second, {(CLIENT, "row_lock"): 10}) for second in at)
        return looks, (ObservedStack(CLIENT, "row_lock", STACK, 10 * len(at)),) if stacks else ()


@pytest.fixture
def sensor() -> MadeSensor:
    return MadeSensor()


@pytest.fixture
def servers() -> Servers:
    found = Servers(config.Config(sql=config.Sql(enabled=False)))
    found.register_from_sensor(NAME, target(pid=os.getpid()))
    return found


@pytest.fixture
def recorders(servers: Servers, sensor: MadeSensor) -> Recorders:
    return Recorders(servers, sensor, 60)


def picture(values: Mapping[str, Any], failing: str | None = None) -> Scrape:
    declared = registry.default()
    series = tuple(Series(declared[name], NAME, (), value) for name, value in values.items())
    view = ServerState(NAME, "mysql", True, (("memory", failing), ("waits", None)))
    return Scrape(0.0, series, (view,))


def test_numbers_and_looks_of_a_time(recorders: Recorders, sensor: MadeSensor) -> None:
    for at in range(1000, 1100):
        recorders.add_scrape(at, picture({"connections_running": at - 1000, "statements": at}))
        recorders.add_scrape(at, picture({"connections_running": -1}))  # the same gathering again
    recorder = recorders.of(NAME)
    assert recorder is not None
    evidence = recorder.between(1090, 1094)
    assert evidence.gauge("connections_running") == [90, 91, 92, 93, 94]
    assert evidence.change("statements") == (4, 4)
    assert len(evidence.looks) == 5
    assert evidence.seen[0].functions == STACK
    assert evidence.server["pid"] == str(os.getpid())
    assert len(recorder.between(0, 2000).snapshots) == 61
    assert recorder.without_sql(1090, 1094).seen == ()
    assert sensor.asked[0] == (NAME, True)
    assert judge(evidence).findings[0].name == "row_lock_convoy"


def test_what_fails_is_said(recorders: Recorders, sensor: MadeSensor) -> None:
    recorders.add_scrape(1000, picture({"statements": 1}, "denied: access denied"))
    sensor.down = True
    recorder = recorders.of(NAME)
    assert recorder is not None
    missing = recorder.between(990, 1000).missing
    assert missing["memory"].words == "access denied"
    assert "sql.enabled" in missing["sql"].words
    assert (missing["looks"].words, missing["looks"].remedy) == ("it is away", "start it")
    assert recorder.query_blockers().answers == {}


def test_another_process_under_the_name_begins_anew(recorders: Recorders, servers: Servers) -> None:
    recorders.add_scrape(1000, picture({"statements": 1}))
    first = recorders.of(NAME)
    recorders.add_scrape(1001, picture({"statements": 2}))
    assert recorders.of(NAME) is first
    servers.register_from_sensor(NAME, target(pid=os.getpid(), start_time=7))
    recorders.add_scrape(1002, picture({"statements": 3}))
    second = recorders.of(NAME)
    assert second is not None
    assert second is not first
    assert [one.at for one in second.between(0, 2000).snapshots] == [1002]
    assert recorders.of("other") is None
