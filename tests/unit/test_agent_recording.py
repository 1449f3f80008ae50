"""The agent's recorder returns its scrapes and the sensor's snapshots for any interval."""

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
from unit.snapshots import target

if TYPE_CHECKING:
    from collections.abc import Mapping

NAME = "orders"
STACK = ("futex", "lock_wait_suspend_thread")


class FakeSensor:
    """A fake sensor that returns one snapshot per second, with ten threads that are waiting for row locks."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, bool]] = []
        self.down = False

    def snapshots(
        self, server: str, begin: float, end: float, *, stacks: bool
    ) -> tuple[tuple[SnapshotSummary, ...], tuple[ObservedStack, ...]]:
        self.calls.append((server, stacks))
        if self.down:
            raise SensorDown("the sensor is down", remedy="start it")
        at = [float(second) for second in range(2000) if begin <= second <= end]
        snapshots = tuple(SnapshotSummary(second, {(CLIENT, "row_lock"): 10}) for second in at)
        return snapshots, (ObservedStack(CLIENT, "row_lock", STACK, 10 * len(at)),) if stacks else ()


@pytest.fixture
def sensor() -> FakeSensor:
    return FakeSensor()


@pytest.fixture
def servers() -> Servers:
    found = Servers(config.Config(sql=config.Sql(enabled=False)))
    found.register_from_sensor(NAME, target(pid=os.getpid()))
    return found


@pytest.fixture
def recorders(servers: Servers, sensor: FakeSensor) -> Recorders:
    return Recorders(servers, sensor, 60)


def scrape(values: Mapping[str, Any], failing: str | None = None) -> Scrape:
    declared = registry.default()
    series = tuple(Series(declared[name], NAME, (), value) for name, value in values.items())
    view = ServerState(NAME, "mysql", True, (("memory", failing), ("waits", None)))
    return Scrape(0.0, series, (view,))


def test_evidence_has_readings_and_snapshots_of_the_interval(
    recorders: Recorders, sensor: FakeSensor
) -> None:
    for at in range(1000, 1100):
        recorders.add_scrape(at, scrape({"connections_running": at - 1000, "statements": at}))
        recorders.add_scrape(at, scrape({"connections_running": -1}))  # a duplicate, which is ignored
    recorder = recorders.of(NAME)
    assert recorder is not None
    evidence = recorder.between(1090, 1094)
    assert evidence.gauge("connections_running") == [90, 91, 92, 93, 94]
    assert evidence.change("statements") == (4, 4)
    assert len(evidence.snapshots) == 5
    assert evidence.seen[0].functions == STACK
    assert evidence.server["pid"] == str(os.getpid())
    assert len(recorder.between(0, 2000).readings) == 61
    assert recorder.without_sql(1090, 1094).seen == ()
    assert sensor.calls[0] == (NAME, True)
    assert judge(evidence).findings[0].name == "row_lock_convoy"


def test_missing_sources_have_reasons(recorders: Recorders, sensor: FakeSensor) -> None:
    recorders.add_scrape(1000, scrape({"statements": 1}, "denied: access denied"))
    sensor.down = True
    recorder = recorders.of(NAME)
    assert recorder is not None
    missing = recorder.between(990, 1000).missing
    assert missing["memory"].words == "access denied"
    assert "sql.enabled" in missing["sql"].words
    assert (missing["looks"].words, missing["looks"].remedy) == ("the sensor is down", "start it")
    assert recorder.query_blockers().answers == {}


def test_restarted_server_starts_a_new_recording(recorders: Recorders, servers: Servers) -> None:
    recorders.add_scrape(1000, scrape({"statements": 1}))
    first = recorders.of(NAME)
    recorders.add_scrape(1001, scrape({"statements": 2}))
    assert recorders.of(NAME) is first
    servers.register_from_sensor(NAME, target(pid=os.getpid(), start_time=7))
    recorders.add_scrape(1002, scrape({"statements": 3}))
    second = recorders.of(NAME)
    assert second is not None
    assert second is not first
    assert [one.at for one in second.between(0, 2000).readings] == [1002]
    assert recorders.of("other") is None
