"""A scrape does not block, and reports the reason for each missing source. The sensors are fake."""

from __future__ import annotations

import gc
import json
import os
import threading
import tracemalloc
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from innoscope.common.samples import Outcome, Sample
from innoscope.common.supervision import Trouble
from innoscope.daemon.agent import config
from innoscope.daemon.agent.collect import Gatherer, Scrape
from innoscope.daemon.agent.routes import budget
from innoscope.daemon.agent.servers import Servers
from innoscope.daemon.protocol.client import SensorDown
from innoscope.daemon.protocol.messages import Reply
from innoscope.metrics import registry
from innoscope.metrics.collectors.own import SensorState, own
from innoscope.metrics.counters import Life
from innoscope.metrics.merge import ServerOutcomes
from innoscope.target.proc import ProcFs
from unit.snapshots import target

if TYPE_CHECKING:
    from pathlib import Path

from unit.fake_sensor import ALIVE, QUIET, Clock, Sensor, reply

IMPATIENT = config.Config(sql=config.Sql(enabled=False), sensor=config.SensorConnection(timeout_seconds=0.2))
_AMPLE_S = 60.0
#: A pid above the kernel's maximum (4 Mi).
NO_PID = 1 << 23


def scrapes_of(sensor: Sensor, count: int = 1, settings: config.Config = QUIET) -> list[Scrape]:
    clock = Clock()
    gatherer = Gatherer(sensor, Servers(settings), registry.default(), clock)
    found = []
    for _ in range(count):
        clock.now += 1
        scrape = gatherer.gather(_AMPLE_S)
        assert scrape is not None
        found.append(scrape)
    return found


def values(scrape: Scrape) -> dict[tuple[str, ...], Any]:
    return {(one.metric.name, one.server, *one.labels): one.value for one in scrape.series}


def test_samples_of_the_sensor_are_exported_with_derived_ones() -> None:
    (scrape,) = scrapes_of(Sensor(reply(Sample("look_seconds", 0.5))))
    found = values(scrape)

    assert found["look_seconds", "3306"] == 0.5
    assert found["collector_success", "3306", "waits"] == 1
    assert found["mysqld_up", "3306"] == 1
    assert found["sensor_up", ""] == 1
    assert found["own_cpu_seconds", "", "sensor"] == 1.5
    assert ("sql_up", "3306") not in found


def test_toggles_in_force_are_exported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INNOSCOPE_RUN", str(tmp_path))
    changed = {
        "id": "a", "toggle": "read_ahead", "value": "off", "way": "sql", "since": 5.0, "until": None,
        "who": "ann", "unfinished": False,
    }  # fmt: skip
    server = {
        "pid": ALIVE.pid, "start_time": ALIVE.start_time, "socket": None,
        "changes": {"done": 1, "undone": 0, "failed": 0}, "toggles": [changed],
    }  # fmt: skip
    content = {"version": 1, "written_at": 6.0, "servers": [server]}
    (tmp_path / "toggles.json").write_text(json.dumps(content))
    (scrape,) = scrapes_of(Sensor(reply()))
    (tmp_path / "toggles.json").write_text("?")
    (damaged,) = scrapes_of(Sensor(reply()))

    assert values(scrape)["toggle_in_force", "3306", "read_ahead", "sql"] == 1
    assert values(scrape)["toggle_changes", "3306", "done"] == 1
    assert values(damaged)["collector_success", "3306", "toggles"] == 0


def test_configured_name_is_preferred_and_others_can_be_omitted() -> None:
    named = config.Config(
        sql=QUIET.sql, server=(config.Server("orders", socket="/run/a.sock"),), only_named=True
    )
    other = config.Config(
        sql=QUIET.sql, server=(config.Server("orders", socket="/run/b.sock", port=None),), only_named=True
    )

    assert [view.name for view in scrapes_of(Sensor(reply()), settings=named)[0].servers] == ["orders"]
    (absent,) = scrapes_of(Sensor(reply()), settings=other)[0].servers
    assert (absent.name, absent.up) == ("orders", False)


def test_server_that_the_agent_found_takes_the_sensors_name() -> None:
    """Check that no server appears under two names if the agent lacks the privileges to find its port."""
    gatherer = Gatherer(Sensor(reply()), servers := Servers(QUIET), registry.default(), Clock())
    servers.register([ALIVE])
    assert [server.name for server in servers] == ["/run/a.sock"]

    scrape = gatherer.gather(_AMPLE_S)

    assert scrape is not None
    assert [view.name for view in scrape.servers] == ["3306"]
    assert {one.server for one in scrape.series} == {"3306", ""}


def test_collectors_of_a_server_that_the_sensor_does_not_watch_fail() -> None:
    others = replace(reply(), servers=())
    gatherer = Gatherer(
        Sensor(others, reply()), servers := Servers(QUIET), registry.default(), clock := Clock()
    )
    servers.register([ALIVE])
    before = gatherer.gather(_AMPLE_S)
    clock.now += 1
    after = gatherer.gather(_AMPLE_S)

    assert before is not None
    assert after is not None
    found = values(before)
    assert found["mysqld_up", "/run/a.sock"] == 1
    for collector in ("process", "memory", "probes", "waits"):
        assert found["collector_success", "/run/a.sock", collector] == 0
        assert found["collector_failure_info", "/run/a.sock", collector, "gone"] == 1
    assert values(after)["collector_success", "3306", "waits"] == 1


def test_failed_sensor_leaves_a_failure_reason() -> None:
    before, after = scrapes_of(Sensor(reply(), SensorDown("the sensor is down", remedy="start it")), 2)
    found = values(after)

    assert values(before)["sensor_up", ""] == 1
    assert found["sensor_up", ""] == 0
    assert found["collector_failure_info", "3306", "waits", "gone"] == 1
    assert found["mysqld_up", "3306"] == 1
    assert ("own_cpu_seconds", "", "sensor") not in found


def test_restart_of_the_sensor_is_counted() -> None:
    scrapes = scrapes_of(Sensor(reply(), reply(), reply(pid=8)), 3)

    assert [values(scrape)["sensor_restarts", ""] for scrape in scrapes] == [0, 0, 1]


def test_ended_server_is_down() -> None:
    (scrape,) = scrapes_of(Sensor(reply(server=target(pid=os.getpid(), start_time=1))))

    assert values(scrape)["mysqld_up", "3306"] == 0
    assert scrape.servers[0].up is False


def test_hanging_sensor_does_not_delay_the_scrape() -> None:
    """Let the sensor respond only after the scrape, which ends when the sensor's timeout has passed."""
    sensor = Sensor(reply())
    sensor.released.clear()
    gatherer = Gatherer(sensor, Servers(IMPATIENT), registry.default())
    scrape = gatherer.gather(_AMPLE_S)
    sensor.released.set()

    assert scrape is not None
    assert gatherer.state.words.startswith("no answer within ")
    assert values(scrape)["sensor_up", ""] == 0


def test_concurrent_scrape_returns_the_last_result() -> None:
    sensor = Sensor(reply(), reply())
    gatherer = Gatherer(sensor, Servers(QUIET), registry.default())
    first = gatherer.gather(_AMPLE_S)
    with gatherer._lock:
        found: list[Scrape | None] = []
        thread = threading.Thread(target=lambda: found.append(gatherer.gather(0.05)))
        thread.start()
        thread.join(_AMPLE_S)

    assert found == [first]


@pytest.mark.parametrize(
    ("header", "seconds"), [(None, 0.8), ("10", 0.8), ("0.5", 0.35), ("0.01", 0.05), ("soon", 0.8)]
)
def test_time_budget_follows_the_timeout_of_prometheus(header: str | None, seconds: float) -> None:
    assert budget(header, 0.8) == pytest.approx(seconds)


class _Asked(Sensor):
    """A fake sensor that records the time limits of the requests."""

    def __init__(self) -> None:
        super().__init__(reply())
        self.limits: list[float] = []

    def collect(self, timeout: float) -> Reply:
        self.limits.append(timeout)
        return super().collect(timeout)


def test_time_limits_grow_with_the_number_of_servers() -> None:
    """The limit in Prometheus' header still applies."""
    named = tuple(config.Server(f"s{number}", socket=f"/run/{number}.sock") for number in range(100))
    sensor = _Asked()
    settings = config.Config(sql=QUIET.sql, server=named)
    gatherer = Gatherer(sensor, Servers(settings), registry.default())
    gatherer.gather(_AMPLE_S)
    assert gatherer.budget >= 4 * 0.8
    assert sensor.limits[0] >= 4 * settings.sensor.timeout_seconds
    assert budget(None, 3.2) == pytest.approx(3.2)
    assert budget("1", 3.2) == pytest.approx(0.85)


def test_own_cost_is_exported() -> None:
    found = {(one.metric, one.labels): one.value for one in own(SensorState(), 3).samples}

    assert float(found["own_resident_memory_bytes", ("agent",)]) > 1 << 20  # type: ignore[arg-type]
    assert found["series_dropped", ()] == 3
    assert found["sensor_up", ()] == 0


def named(**identity: Any) -> config.Config:
    return config.Config(
        sql=config.Sql(enabled=False),
        sensor=config.SensorConnection(timeout_seconds=60.0),
        server=(config.Server("orders", **identity),),
    )


@pytest.mark.parametrize(
    "identity",
    [
        {"socket": "/run/a.sock"},
        {"port": 3306, "host": "127.0.0.1"},
        {"socket": "/run/a.sock", "port": 3306, "host": "172.17.0.2"},
    ],
)
def test_configured_server_is_down_from_the_first_scrape_until_it_runs(identity: dict[str, Any]) -> None:
    settings = named(**identity)
    running = target(pid=ALIVE.pid, start_time=ALIVE.start_time, socket="/run/a.sock", port=3306)
    without = Reply("boot", 7, 1.5, 4096, "0.1.0", (), 0.0)
    down, up = scrapes_of(Sensor(without, reply(server=running)), 2, settings)

    assert values(down)["mysqld_up", "orders"] == 0
    assert values(down)["collector_failure_info", "orders", "process", "gone"] == 1
    (state,) = down.servers
    assert (state.up, state.what) == (False, "has not run since the agent started")
    assert values(up)["mysqld_up", "orders"] == 1
    assert [one.name for one in up.servers] == ["orders"]


def test_configured_server_that_was_never_seen_is_not_down_while_the_sensor_does_not_reply() -> None:
    (scrape,) = scrapes_of(Sensor(SensorDown("no reply")), 1, named(socket="/run/a.sock"))

    assert ("mysqld_up", "orders") not in values(scrape)


def test_configured_server_keeps_its_name_while_it_recovers_from_a_crash() -> None:
    servers = Servers(named(socket="/run/a.sock"), Clock())
    listening = target(pid=ALIVE.pid, start_time=ALIVE.start_time, socket="/run/a.sock")
    servers.register_from_sensor("3306", listening)
    recovering = replace(listening, socket=None, port=None)
    servers.register_from_sensor("3306", recovering)

    assert [(one.name, one.up) for one in servers] == [("orders", True)]
    servers.register_from_sensor("3307", target(pid=NO_PID, socket=None, port=None))
    assert [one.name for one in servers] == ["orders", "3307"]


def test_the_sensors_name_replaces_the_one_that_the_agent_found_before() -> None:
    servers = Servers(named(socket="/run/a.sock"), Clock())
    one = target(pid=ALIVE.pid, start_time=ALIVE.start_time, socket="/run/a.sock", port=None)
    servers.register([one])
    servers.register_from_sensor("3307", replace(one, port=3307))

    assert servers.sensor_name_of("orders") == "3307"


def test_configured_server_is_reported_for_as_long_as_it_is_down() -> None:
    clock = Clock()
    servers = Servers(named(socket="/run/a.sock"), clock)
    servers.register_from_sensor("3306", target(pid=NO_PID, socket="/run/a.sock"))
    servers.register_from_sensor("3307", target(pid=NO_PID + 1, socket="/run/b.sock", port=None))
    clock.now += 30 * 86_400
    servers.forget_ended()

    assert [(one.name, one.up) for one in servers] == [("orders", False)]


def test_the_agent_asks_the_sensor_before_it_searches_for_servers() -> None:
    """Find no process that the sensor refuses, such as a second one on a server's data directory."""
    servers = Servers(QUIET)
    Gatherer(Sensor(reply()), servers, registry.default()).maintain()
    assert [server.name for server in servers] == ["3306"]


def test_processes_that_a_returning_sensor_refuses_are_forgotten() -> None:
    clock = Clock()
    servers = Servers(QUIET, clock)
    gatherer = Gatherer(Sensor(reply(), reply()), servers, registry.default(), clock)
    stranger = target(
        pid=os.getppid(), start_time=ProcFs().stat(os.getppid()).start_time, socket="/run/b.sock", port=None
    )
    servers.register([ALIVE, stranger])  # while the sensor does not answer
    assert len(list(servers)) == 2
    for passed_s, count in ((1.0, 2), (60.0, 1)):  # at first, the sensor may still be identifying them
        clock.now += passed_s
        gatherer.gather(_AMPLE_S)
        gatherer.maintain()
        assert len(list(servers)) == count
    assert [server.target for server in servers] == [ALIVE]


def test_memory_stays_constant_over_ten_thousand_names() -> None:
    """Register processes with new names, each of which has exited before the next one is registered."""
    counted = tuple(
        Sample(metric.name, 1, tuple(label.values[0] if label.values else "one" for label in metric.labels))
        for metric in registry.default()
        if metric.sources[0] == "probes" and metric.kind == "counter"
    )
    clock = Clock()
    servers = Servers(QUIET, clock)
    gatherer = Gatherer(Sensor(), servers, registry.default(), clock)
    gatherer.state.answered(("boot", 7), "0.1.0", 1.5, 4096, Trouble())
    gatherer.latest = Scrape(0.0, (), ())
    sizes = []
    tracemalloc.start()
    for number in range(10_000):
        ended = target(pid=NO_PID, start_time=number, socket=f"/{number:05}")
        assert servers.register_from_sensor(f"pid {number:05}", ended) is not None
        outcome = Outcome("probes", True, 0.1, counted, None)
        gatherer._merger.merge(ServerOutcomes(f"pid {number:05}", Life(number, "boot"), (outcome,)))
        clock.now += 1
        if number % 20 == 19:
            gatherer.maintain()
        if number % 1000 == 999:
            gc.collect()  # so that garbage is not measured
            ours = tracemalloc.take_snapshot().filter_traces([tracemalloc.Filter(True, "*/innoscope/*")])
            sizes.append(sum(one.size for one in ours.statistics("filename")))
    tracemalloc.stop()
    assert len(list(servers)) == len(servers._own_names) == len(gatherer._merger._servers) <= 64
    # The second thousand names fill the caches of 1,024 names; after that, memory must not grow.
    assert sizes[-1] < sizes[1] * 1.01, sizes

    clock.now += 2 * 3600
    gatherer.maintain()
    assert not list(servers)
    assert not servers._own_names
    assert not gatherer._merger._servers
