"""Test alerts on a real replica, and the alert for a server that is not running when its agent starts.

The rules are the shipped ones with scaled times (alerting.scaled).
"""

from __future__ import annotations

from contextlib import closing, contextmanager
from typing import TYPE_CHECKING

import pytest

from alerting import Alerting, until
from incidents.scenes_replica import OPTIONS, following
from safety.agenting import Running
from safety.sensing import Sensing
from scale import few
from servers import Server

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

#: The agent searches for servers and queries their state every second.
QUICK = ("[stacks]\npoll_seconds = 1\n", "[sql]\nuser = 'root'\nstate_seconds = 1\n")
STOPPED, LAGGING, DOWN = (
    f"Innoscope{name}" for name in ("ReplicationStopped", "ReplicationLagging", "ServerDown")
)


@contextmanager
def watched(server: Server, folder: Path, sensor: Path | None = None) -> Iterator[Alerting]:
    """Run an agent, by default without a sensor, and Prometheus with the alerts."""
    with (
        Running(server, options=QUICK, sensor=sensor) as agent,
        Alerting(folder, agent.port) as prometheus,
    ):
        yield prometheus


def fires(prometheus: Alerting, alert: str) -> None:
    until(lambda: prometheus.states().get(alert) == "firing", prometheus.states)


def resolves(prometheus: Alerting, alert: str) -> None:
    until(lambda: alert not in prometheus.states(), prometheus.states)


@pytest.mark.parametrize(
    "name",
    few(
        ("mysql-5.6.24", "mysql-8.0.31", "mariadb-10.11"),
        "mariadb-10.11",
        reason="test_state.py has all servers",
    ),
)
def test_replica_that_lags_and_stops(name: str, tmp_path: Path) -> None:
    with (
        Server(name, options=OPTIONS) as replica,
        following(replica) as pair,
        watched(replica, tmp_path) as prometheus,
    ):
        until(lambda: prometheus.value("sum(innoscope_replication_running)") == 2, prometheus.states)
        assert not {STOPPED, LAGGING} & prometheus.states().keys()

        with closing(replica.connect(database="shop")) as holder, holder.cursor() as cursor:
            cursor.execute("BEGIN")
            cursor.execute("UPDATE stock SET b = 1 WHERE a = 1")
            pair.change("SET timestamp = UNIX_TIMESTAMP() - 600")  # the change is ten minutes old
            pair.change("UPDATE shop.stock SET b = 2 WHERE a = 1")
            fires(prometheus, LAGGING)
        resolves(prometheus, LAGGING)

        pair.stop()
        fires(prometheus, STOPPED)
        pair.start()
        resolves(prometheus, STOPPED)


def test_server_that_does_not_run_after_a_reboot(tmp_path: Path) -> None:
    with Server("mysql-5.6.24") as server:
        server.stop()
        socket = server.folder.inside / "s.sock"
        with (
            Sensing("--no-probes", "--only", socket) as sensing,
            watched(server, tmp_path, sensing.path) as prometheus,
        ):
            fires(prometheus, DOWN)
            server.start()
            resolves(prometheus, DOWN)
            assert prometheus.value('innoscope_mysqld_up{server="under test"}') == 1
