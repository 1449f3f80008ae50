"""The shipped alerts end to end: a real server, agent, Prometheus, Alertmanager and a webhook.

The rules are the shipped ones with time scaled (alerting.scaled). Each alert fires and is notified, the cause
goes away, and it is resolved and notified; under the same load without a cause none fires.
"""

from __future__ import annotations

import os
import re
import signal
import time
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, ClassVar

import pytest

from alerting import Alerting, Alertmanager, Notified, until
from live import figures
from safety.agenting import Running
from safety.command import innoscope
from safety.sensing import Sensing
from servers import Server
from workloads import RowLock, UpdateStorm

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

CLIENTS = 14
#: No alert may fire for so long under a healthy load: twelve minutes, scaled.
QUIET_S = 12
#: The smallest redo log that there can be. Commits do not go to disk: how long that takes is not the test.
OPTIONS: dict[str, str | int | None] = {
    "innodb_redo_log_capacity": "8M",
    "innodb_flush_log_at_trx_commit": 2,
    "innodb_buffer_pool_size": "256M",
    "innodb_io_capacity": 200,
}


class OwnRows(UpdateStorm):
    """The same updates as those that wait in RowLock, of rows that nobody holds, each on another page."""

    name: ClassVar[str] = "own_rows"
    rows: ClassVar[int] = 16_384

    @property
    def describe(self) -> str:
        return f"{self.count} clients updating rows of {self.rows}"

    def prepare(self) -> None:
        table = f"{self.database}.t1"
        self.sql(f"CREATE TABLE {table} (a INT AUTO_INCREMENT PRIMARY KEY, b INT, pad VARCHAR(4100))")
        self.sql(f"INSERT INTO {table} (b, pad) VALUES (0, REPEAT('x', 4000))")
        for _ in range(self.rows.bit_length() - 1):
            self.sql(f"INSERT INTO {table} (b, pad) SELECT b, pad FROM {table}")

    def statements(self) -> Sequence[str]:
        return ["UPDATE t1 SET b = b + 1 WHERE a = $R"]


class Scene:
    """One server and all that watches it."""

    def __init__(self, stack: ExitStack, folder: Path) -> None:
        self.server = stack.enter_context(Server("mysql-9.7", options=OPTIONS))
        sensing = stack.enter_context(Sensing(only=[self.server]))
        self.agent = stack.enter_context(Running(self.server, sensor=sensing.path))
        self.notified = stack.enter_context(Notified())
        self.alertmanager = stack.enter_context(Alertmanager(folder, self.notified))
        self.prometheus = stack.enter_context(Alerting(folder, self.agent.port, self.alertmanager))

    def notifies(self, alert: str, status: str) -> dict[str, str]:
        """Wait for Alertmanager's word of it; its labels and annotations."""
        told = until(lambda: self.notified.of(alert).get(status), lambda: f"{alert} {status}: {self.words()}")
        return {**told["labels"], **told["annotations"], "path": told["path"]}

    def toggle(self, *words: str) -> None:
        done = innoscope("toggle", *words, "--pid", self.server.pid)
        assert done.returncode == 0, done.stderr

    def words(self) -> str:
        return f"{self.prometheus.states()}, notified {self.notified.summary()}"

    @contextmanager
    def fires(self, *alerts: str) -> Iterator[None]:
        """Within the block they fire; after it they are resolved."""
        began = time.monotonic()
        yield
        ended = time.monotonic()
        for alert in alerts:
            self.notifies(alert, "resolved")
            seconds = (
                f"{ended - began:.1f} s with its cause, resolved {time.monotonic() - ended:.1f} s after it"
            )
            figures.record("alert end to end", alert, seconds)


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    with pytest.MonkeyPatch.context() as patch, ExitStack() as stack:
        for name in ("STATE", "RUN"):
            patch.setenv(f"INNOSCOPE_{name}", str(tmp_path_factory.mktemp(name.lower())))
        yield Scene(stack, tmp_path_factory.mktemp("alerting"))


def test_stalls_fire_are_notified_and_resolve(scene: Scene) -> None:
    with scene.fires("InnoscopeToggleLeftOn"):
        scene.toggle("set", "flush_neighbors", "contiguous", "--yes")

        with scene.fires("InnoscopeRowLockConvoy"), RowLock(scene.server, CLIENTS):
            told = scene.notifies("InnoscopeRowLockConvoy", "firing")
            assert told["server"] == "under test"
            assert told["path"] == "/mail"
            assert re.match(r"1\d threads", told["description"])
            page = told["runbook_url"].removeprefix(f"http://127.0.0.1:{scene.agent.port}")
            status, body = scene.agent.get(page)
            assert (status, body.split()[1]) == (200, b"InnoscopeRowLockConvoy")

        with scene.fires("InnoscopeServerStopped"):
            os.kill(scene.server.pid, signal.SIGSTOP)
            try:
                assert scene.notifies("InnoscopeServerStopped", "firing")["path"] == "/pager"
                follows = "InnoscopeSqlNotAnswering"
                until(lambda: follows in scene.alertmanager.suppressed(), scene.words)
                assert not scene.notified.of(follows)
            finally:
                os.kill(scene.server.pid, signal.SIGCONT)

        assert "flush_neighbors" in scene.notifies("InnoscopeToggleLeftOn", "firing")["description"]
        scene.toggle("undo")


def test_a_storm_ends_with_its_cause_and_the_same_load_then_fires_nothing(scene: Scene) -> None:
    with OwnRows(scene.server, CLIENTS):
        with scene.fires("InnoscopeFlushingStorm"):
            assert scene.notifies("InnoscopeFlushingStorm", "firing")["path"] == "/pager"
            scene.toggle("set", "redo_size", "1024", "--yes", "--for", "1h")  # as its runbook says

        until(lambda: not scene.prometheus.states(), scene.words)
        before = len(scene.notified.notifications)
        time.sleep(QUIET_S)  # what is waited for is that nothing happens
        assert scene.prometheus.fired(QUIET_S) == {}
        assert len(scene.notified.notifications) == before
