"""Test the shipped alerts end to end: a real server, agent, Prometheus, Alertmanager and a webhook.

The rules are the shipped ones with scaled times (alerting.scaled). Each alert fires and sends a notification;
once its cause is removed, the alert resolves and sends another one. Under the same load without a cause, no
alert fires.
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
from safety.agenting import Running
from safety.command import innoscope
from safety.sensing import Sensing
from scale import long
from servers import Server
from workloads import RowLock, UpdateStorm

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

CONVOY = "InnoscopeRowLockConvoy"
CLIENTS = 14
#: Seconds of healthy load during which no alert should fire. They correspond to twelve unscaled minutes.
QUIET_S = 12
#: Options for the smallest possible redo log. Commits are not flushed to disk, because fsync times are not
#: tested here.
OPTIONS: dict[str, str | int | None] = {
    "innodb_redo_log_capacity": "8M",
    "innodb_flush_log_at_trx_commit": 2,
    "innodb_buffer_pool_size": "256M",
    "innodb_io_capacity": 200,
}


class OwnRows(UpdateStorm):
    """An update load like RowLock's, but on rows that are not locked. Each update writes a few KB of redo."""

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
    """One server with sensor, agent, Prometheus, Alertmanager and webhook."""

    def __init__(self, stack: ExitStack, folder: Path) -> None:
        self.server = stack.enter_context(Server("mysql-9.7", options=OPTIONS))
        sensing = stack.enter_context(Sensing(only=[self.server]))
        self.agent = stack.enter_context(Running(self.server, sensor=sensing.path))
        self.notified = stack.enter_context(Notified())
        self.alertmanager = stack.enter_context(Alertmanager(folder, self.notified))
        self.prometheus = stack.enter_context(Alerting(folder, self.agent.port, self.alertmanager))

    def notifies(self, alert: str, status: str) -> dict[str, str]:
        """Wait for the notification; return its labels, its annotations and the webhook's path."""
        wanted = f"{alert} {status}"
        found = until(lambda: self.notified.of(alert).get(status), lambda: f"{wanted}: {self.words()}")
        return {**found["labels"], **found["annotations"], "path": found["path"]}

    def toggle(self, *words: str) -> None:
        done = innoscope("toggle", *words, "--pid", self.server.pid)
        assert done.returncode == 0, done.stderr

    def words(self) -> str:
        return f"{self.prometheus.states()}, notified {self.notified.summary()}"

    def fires(self, alert: str) -> dict[str, str]:
        """Wait until the alert fires; return its notification."""
        return self.notifies(alert, "firing")

    def resolves(self, alert: str) -> None:
        """Wait until the alert resolves."""
        self.notifies(alert, "resolved")


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    with pytest.MonkeyPatch.context() as patch, ExitStack() as stack:
        for name in ("STATE", "RUN"):
            patch.setenv(f"INNOSCOPE_{name}", str(tmp_path_factory.mktemp(name.lower())))
        yield Scene(stack, tmp_path_factory.mktemp("alerting"))


def test_row_lock_convoy_notifies_and_resolves(scene: Scene) -> None:
    with RowLock(scene.server, CLIENTS):
        alert = scene.fires(CONVOY)
        assert (alert["server"], alert["path"]) == ("under test", "/mail")
        assert re.match(r"\d+ threads of under test ", alert["description"])
        # When the alert begins to fire, its rate may still be inaccurate, because a scrape was missed.
        until(lambda: re.match(r"1\d threads ", scene.prometheus.description(CONVOY)), scene.words)
        page = alert["runbook_url"].removeprefix(f"http://127.0.0.1:{scene.agent.port}")
        status, body = scene.agent.get(page)
        assert (status, body.split()[1]) == (200, CONVOY.encode())
    scene.resolves(CONVOY)


def test_stopped_server_notifies_and_resolves(scene: Scene) -> None:
    follows = "InnoscopeSqlNotAnswering"
    # On a busy host, an earlier query may have timed out.
    until(lambda: follows not in scene.prometheus.states(), scene.words)
    scene.notified.notifications.clear()
    # A scrape during which the server is stopped could report that SQL fails without the reason. The agent
    # repeats its response for 0.25 s, so after this request, no scrape reads anything for that time.
    scene.agent.get("/metrics")
    os.kill(scene.server.pid, signal.SIGSTOP)
    try:
        assert scene.fires("InnoscopeServerStopped")["path"] == "/pager"
        until(lambda: follows in scene.alertmanager.suppressed(), scene.words)
        assert "firing" not in scene.notified.of(follows)
    finally:
        os.kill(scene.server.pid, signal.SIGCONT)
    scene.resolves("InnoscopeServerStopped")


@long("it takes a minute; in make test, the two alerts above fire, send notifications and resolve")
def test_flushing_storm_toggle_left_on_and_none_under_a_healthy_load(scene: Scene) -> None:
    scene.toggle("set", "flush_neighbors", "contiguous", "--yes")
    with OwnRows(scene.server, CLIENTS):
        assert scene.fires("InnoscopeFlushingStorm")["path"] == "/pager"
        scene.toggle("set", "redo_size", "4096", "--yes", "--for", "1h")  # as the alert's runbook says
        scene.resolves("InnoscopeFlushingStorm")

        assert "flush_neighbors" in scene.fires("InnoscopeToggleLeftOn")["description"]
        scene.toggle("undo", "flush_neighbors")
        scene.resolves("InnoscopeToggleLeftOn")

        # This load is healthy: it runs as many updates as waited in the convoy, but they do not wait.
        until(lambda: not scene.prometheus.states(), scene.words)
        time.sleep(QUIET_S)  # a fixed time: no alert should fire, so there is no event to wait for
        assert scene.prometheus.fired(QUIET_S) == {}
