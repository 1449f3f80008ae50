"""The collectors of the sensor and of the agent for one server, in this process."""

from __future__ import annotations

import threading
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from innoscope.common import workers as working
from innoscope.common.workers import Workers
from innoscope.daemon.agent import collect
from innoscope.daemon.sensor import watch as watching
from innoscope.daemon.sensor.watch import WatchedServer
from innoscope.metrics.collectors import process, sql_catalog, state_catalog, waits
from innoscope.metrics.collectors import sql as sql_collector
from innoscope.metrics.collectors.memory import MemoryCollector
from innoscope.metrics.collectors.runner import Runner
from innoscope.metrics.collectors.snapshot_budget import SnapshotBudget
from innoscope.metrics.collectors.sql import SqlCollector
from innoscope.metrics.collectors.state import StateCollector
from innoscope.sampling.profile_history import ProfileHistory
from innoscope.sampling.sessions.buffer import SampleBuffer
from innoscope.sampling.snapshot_history import SnapshotHistory
from innoscope.target import sql
from innoscope.target.discover import find_one
from waiting import until

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator

    import pytest

    from innoscope.common.samples import Outcome
    from innoscope.metrics.collectors.runner import Collector
    from servers import Server

INTERVAL_S: Final = 0.2
#: Maximum seconds until a failure is reported, and until all collectors succeed again.
WITHIN_S: Final = 20.0


class _Client:
    """A stand-in for the connection to the sensor."""

    def collect(self, _timeout: float) -> Any:
        """Return None instead of a reply, because the collector only stores the reply."""


class _Budget(SnapshotBudget):
    """A budget that is always exceeded, and therefore always shared, but delays no snapshot."""

    def __init__(self) -> None:
        super().__init__(cores=1e-6)

    def pause_s(
        self, server: Hashable, turn: str, interval_s: float, duration_s: float, cpu_s: float
    ) -> float:
        super().pause_s(server, turn, interval_s, duration_s, cpu_s)
        return interval_s


class Scene(NamedTuple):
    """The collectors of the sensor and of the agent for one server, by name."""

    watched: WatchedServer
    agent: Runner
    collectors: dict[str, Any]

    def run(self) -> dict[str, Outcome]:
        """Run all collectors once; return their outcomes by name."""
        self.watched.start()
        self.agent.start()
        return {one.collector: one for one in (*self.watched.outcomes(), *self.agent.outcomes())}

    def succeeds(self) -> bool:
        """Run all collectors once. Return whether none fails."""
        return all(outcome.success for outcome in self.run().values())

    def forget(self, name: str) -> None:
        """Make a collector repeat the calls that it makes only at its first run."""
        collector = self.collectors[name]
        if name == "waits":
            collector._source = None
            collector._seen.clear()
        elif name == "memory":
            collector.reader._plan = None
        elif name in ("sql", "state"):
            collector.close()


def shorten_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the collectors retry immediately, and give them enough time on a busy host."""
    monkeypatch.setattr(waits, "_RETRY_S", INTERVAL_S)
    monkeypatch.setattr(waits, "_STALE_S", WITHIN_S)
    monkeypatch.setattr(watching, "PATIENCE_S", WITHIN_S)
    monkeypatch.setattr(working, "_CHECK_S", INTERVAL_S)
    for name in ("_FIRST_PAUSE", "_LONGEST_PAUSE"):
        monkeypatch.setattr(sql_collector, name, 0.0)
    monkeypatch.setattr(process, "_CPU_PAUSE", 0)


@contextmanager
def open_scene(server: Server) -> Iterator[Scene]:
    """Yield the collectors of a server, once all of them succeed."""
    target, workers, ended = find_one(server.pid), Workers(), threading.Event()

    def keep_working() -> None:
        while not ended.is_set():
            with suppress(BaseException):  # in the sensor, the supervisor restarts the thread
                workers.run(lambda: None)

    runs = threading.Thread(target=keep_working)
    runs.start()
    watched = WatchedServer(
        target,
        ProfileHistory(),
        [MemoryCollector],
        workers=workers,
        tenant="",
        budget=_Budget(),
        snapshots=SnapshotHistory(60.0),
        samples=SampleBuffer(),
        interval_s=INTERVAL_S,
    )
    connect = partial(sql.connect, target, user="root", timeout=WITHIN_S)
    of_server = target.flavour, target.version
    metrics = SqlCollector(connect, sql_catalog.default(), *of_server)
    states = StateCollector(connect, state_catalog.default(), *of_server, interval_s=0.0)
    agent: list[Collector] = [metrics, states, collect._SensorCollector(_Client(), WITHIN_S)]
    runner = Runner(agent, workers, "agent")
    scene = Scene(watched, runner, {one.name: one for one in (*watched._collectors, *agent)})
    for one in scene.collectors.values():
        one.timeout = WITHIN_S  # on a busy host, no collector may fail with a timeout
    scene.collectors["process"]._cpu_every_s = 0.0
    try:
        until(scene.succeeds)
        yield scene
    finally:
        runner.close()
        metrics.close()
        states.close()
        watched.close()
        ended.set()
        workers.close(5.0)
        runs.join()
