"""The shipped alerts end to end: a real server, agent, Prometheus, Alertmanager and a webhook.

The rules are the shipped ones with time scaled (alerting.scaled). Each alert fires and is notified, the cause
goes away, and it is resolved and notified; under the same load without a cause none fires.
"""

from __future__ import annotations

import os
import re
import signal
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, ClassVar

import pytest

from alerting import Alerting, Alertmanager, Notified, until
from live import figures
from safety.agenting import Running
from safety.command import innoscope
from safety.sensing import Sensing
from scale import long
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
    """As many updates as wait in RowLock, of rows that nobody holds; each makes some KB of redo."""

    name: ClassVar[str] = "own_rows"
    rows: ClassVar[int] = 4_096

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
        return ["UPDATE t1 SET b = b + 1, pad = REPEAT(CHAR(65 + b % 26), 4000) WHERE a = $R"]


class Scene:
    """One server and all that watches it."""

    def __init__(self, stack: ExitStack, folder: Path) -> None:
        self.server = stack.enter_context(Server("mysql-9.7", options=OPTIONS))
        sensing = stack.enter_context(Sensing(only=[self.server]))
        self.agent = stack.enter_context(Running(self.server, sensor=sensing.path))
        self.notified = stack.enter_context(Notified())
        self.alertmanager = stack.enter_context(Alertmanager(folder, self.notified))
        self._caused = time.monotonic()
        self._fired: dict[str, float] = {}
        self.prometheus = stack.enter_context(Alerting(folder, self.agent.port, self.alertmanager))

    def notifies(self, alert: str, status: str) -> dict[str, str]:
        """Wait for Alertmanager's word of it; its labels and annotations."""
        told = until(lambda: self.notified.of(alert).get(status), lambda: f"{alert} {status}: {self.words()}")
        return {**told["labels"], **told["annotations"], "path": told["path"], "at": told["at"]}

    def toggle(self, *words: str) -> None:
        done = innoscope("toggle", *words, "--pid", self.server.pid)
        assert done.returncode == 0, done.stderr

    def words(self) -> str:
        return f"{self.prometheus.states()}, notified {self.notified.summary()}"

    def fires(self, alert: str) -> dict[str, str]:
        """Wait until it does; since when its cause was there is taken from the last ``cause``."""
        told = self.notifies(alert, "firing")
        self._fired[alert] = float(told["at"]) - self._caused
        return told

    def cause(self, began: float | None = None) -> None:
        """A cause begins now, or did then."""
        self._caused = time.monotonic() if began is None else began

    def resolves(self, alert: str) -> None:
        """Wait until it does; its cause has just gone."""
        gone = time.monotonic()
        self.notifies(alert, "resolved")
        words = (
            f"notified {self._fired[alert]:.1f} s after its cause, resolved {time.monotonic() - gone:.1f} s"
        )
        figures.record("alert end to end", alert, f"{words} after that was gone")


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    with pytest.MonkeyPatch.context() as patch, ExitStack() as stack:
        for name in ("STATE", "RUN"):
            patch.setenv(f"INNOSCOPE_{name}", str(tmp_path_factory.mktemp(name.lower())))
        yield Scene(stack, tmp_path_factory.mktemp("alerting"))


def test_a_row_lock_convoy_is_notified_and_resolved(scene: Scene) -> None:
    scene.cause()
    with RowLock(scene.server, CLIENTS):
        told = scene.fires("InnoscopeRowLockConvoy")
        assert (told["server"], told["path"]) == ("under test", "/mail")
        assert re.match(r"1\d threads", told["description"])
        page = told["runbook_url"].removeprefix(f"http://127.0.0.1:{scene.agent.port}")
        status, body = scene.agent.get(page)
        assert (status, body.split()[1]) == (200, b"InnoscopeRowLockConvoy")
    scene.resolves("InnoscopeRowLockConvoy")


def test_a_stopped_server_is_notified_and_resolved(scene: Scene) -> None:
    scene.cause()
    os.kill(scene.server.pid, signal.SIGSTOP)
    try:
        assert scene.fires("InnoscopeServerStopped")["path"] == "/pager"
        follows = "InnoscopeSqlNotAnswering"
        until(lambda: follows in scene.alertmanager.suppressed(), scene.words)
        assert not scene.notified.of(follows)
    finally:
        os.kill(scene.server.pid, signal.SIGCONT)
    scene.resolves("InnoscopeServerStopped")


@long("a minute; the two alerts above fire, are notified and resolve in make test")
def test_flushing_storm_toggle_left_on_and_none_under_a_healthy_load(scene: Scene) -> None:
    scene.toggle("set", "flush_neighbors", "contiguous", "--yes")
    left_on = time.monotonic()
    with OwnRows(scene.server, CLIENTS):
        scene.cause()
        assert scene.fires("InnoscopeFlushingStorm")["path"] == "/pager"
        scene.toggle("set", "redo_size", "4096", "--yes", "--for", "1h")  # as its runbook says
        scene.resolves("InnoscopeFlushingStorm")

        scene.cause(left_on)
        assert "flush_neighbors" in scene.fires("InnoscopeToggleLeftOn")["description"]
        scene.toggle("undo", "flush_neighbors")
        scene.resolves("InnoscopeToggleLeftOn")

        # The same load as in the storm, as many updates as wait in the convoy, and nothing wrong.
        until(lambda: not scene.prometheus.states(), scene.words)
        time.sleep(QUIET_S)  # what is waited for is that nothing happens
        assert scene.prometheus.fired(QUIET_S) == {}
