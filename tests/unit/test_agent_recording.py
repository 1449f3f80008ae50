"""The agent's recorder returns its scrapes and the sensor's snapshots for any interval."""

from __future__ import annotations

import json
import os
import threading
from typing import TYPE_CHECKING, Any

import pytest

from innoscope.daemon.agent import config
from innoscope.daemon.agent.collect import Gatherer, Scrape, ServerState
from innoscope.daemon.agent.incident_watch import IncidentWatch, settings
from innoscope.daemon.agent.incidents import Incidents
from innoscope.daemon.agent.recorder import Recorders
from innoscope.daemon.agent.servers import Servers
from innoscope.daemon.protocol.client import SensorClient, SensorDown
from innoscope.diagnose.evidence import Evidence
from innoscope.diagnose.incident.server_facts import ServerFacts
from innoscope.diagnose.verdict import judge
from innoscope.diagnose.watch.loop import Stalled
from innoscope.diagnose.watch.triggers import parse
from innoscope.metrics import registry
from innoscope.metrics.merge import ExportedSeries
from innoscope.sampling.snapshot_history import CLIENT, ObservedStack, SnapshotSummary
from unit.snapshots import target

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

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


class Rounds(threading.Event):
    """An event that ends a loop after ``count`` rounds: each call of ``wait`` counts as one round."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self._left = count

    def wait(self, timeout: float | None = None) -> bool:
        self._left -= 1
        return self._left < 0


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
    series = tuple(ExportedSeries(declared[name], NAME, (), value) for name, value in values.items())
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


def test_sensor_that_fails_is_not_asked_for_each_server(servers: Servers, sensor: FakeSensor) -> None:
    other = "stock"
    servers.register_from_sensor(other, target(pid=os.getppid()))
    recorders = Recorders(servers, sensor, 60)
    recorders.add_scrape(1000, scrape({"statements": 1}))
    sensor.down = True
    missing = [recorder.between(990, 1000).missing["looks"] for recorder in recorders.all().values()]
    assert [one.words for one in missing] == ["the sensor is down"] * 2
    assert len(sensor.calls) == 1


def incident_watch_of(
    servers: Servers, recorders: Recorders, incidents: Incidents, clock: Callable[[], float] = float
) -> IncidentWatch:
    rules = settings(config.Watch(triggers=("share.row_lock>0.3",)))
    gatherer = Gatherer(SensorClient("/nonexistent"), servers, registry.default())
    return IncidentWatch(rules, gatherer, recorders, incidents, clock)


def test_the_watchdog_gets_a_heartbeat_for_each_server(
    servers: Servers, sensor: FakeSensor, tmp_path: Path
) -> None:
    """Use ten servers: if many servers do not respond, a round may exceed the watchdog's timeout."""
    names = [NAME, *(f"server {number}" for number in range(9))]
    for number, name in enumerate(names):
        servers.register_from_sensor(name, target(pid=os.getpid(), start_time=number))
    recorders = Recorders(servers, sensor, 60)
    recorders.add_scrape(1000, scrape({"statements": 1}))
    watch = incident_watch_of(servers, recorders, Incidents(config.Watch(directory=str(tmp_path))))
    beats: list[None] = []
    watch.run(Rounds(1), lambda: beats.append(None))
    assert len(beats) == 1 + len(names)


def is_up(watch: IncidentWatch) -> object:
    [sample] = watch.own_samples()
    assert sample.metric == "watch_up"
    return sample.value


def test_folder_that_is_not_writable_at_the_start_is_checked_again(
    servers: Servers, recorders: Recorders, tmp_path: Path
) -> None:
    now = 0.0
    folder = tmp_path / "disk" / "incidents"
    folder.parent.touch()  # a file, so that even root cannot create the directory
    incidents = Incidents(config.Watch(directory=str(folder)), notify=True)
    watch = incident_watch_of(servers, recorders, incidents, clock=lambda: now)
    watch.run(Rounds(1), lambda: None)
    assert is_up(watch) == 0

    folder.parent.unlink()
    folder.mkdir(parents=True)
    name = "stall-mysql-1-20260101T000000Z.innoscope"
    (folder / name).touch()
    row = {"server": NAME, "trigger": "", "finding": None, "title": None, "notification": "due"}
    (folder / "incidents.json").write_text(json.dumps({name: row}))
    now = 59.0
    watch.run(Rounds(1), lambda: None)
    assert is_up(watch) == 0
    now = 60.0
    watch.run(Rounds(1), lambda: None)
    assert is_up(watch) == 1
    assert [incident.file for incident in incidents.due()] == [name]


def test_failed_write_is_visible_until_a_check_or_a_write_succeeds(
    servers: Servers, recorders: Recorders, tmp_path: Path
) -> None:
    now = 0.0
    folder = tmp_path / "incidents"
    watch = incident_watch_of(
        servers, recorders, Incidents(config.Watch(directory=str(folder))), clock=lambda: now
    )
    during = Evidence({"flavour": "mysql", "pid": "7"}, 1000, 1001)
    before = Evidence({"flavour": "mysql", "pid": "7"}, 940, 1000)
    stalled = Stalled(parse("threads_running>5"), 6, during, before, ServerFacts())
    watch.write(NAME, stalled)
    assert is_up(watch) == 1
    for path in [*folder.iterdir(), folder]:
        path.rmdir() if path.is_dir() else path.unlink()
    folder.touch()
    watch.write(NAME, stalled)
    assert is_up(watch) == 0
    folder.unlink()
    now = 59.0
    watch.check_folder()
    assert is_up(watch) == 0
    now = 60.0
    watch.check_folder()
    assert is_up(watch) == 1


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
