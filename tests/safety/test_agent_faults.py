"""Test that scrapes get a timely response that reports the fault if the server or the sensor fails."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from innoscope.target.proc import ProcFs
from live.changing import connected
from safety.agenting import Running, Scrape, falls
from safety.sensing import Sensing
from safety.stopwatch import Stopwatch
from scale import few
from servers import Server
from waiting import until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

NAMES = ("mysql-5.6.24", "mariadb-10.11")
ACCOUNT = "innoscope"
PASSWORD = "quite-secret"  # noqa: S105
ENDS_S = 1.0
#: Number of times that an agent is ended. An end takes the agent's own time and the time that its threads and
#: its sensor wait for a CPU, so the quickest one shows the agent's time.
ENDS = 3
#: Number of scrapes with a short timeout. A scrape takes the timeout and the time that the agent waits for a
#: CPU, so the quickest one shows the timeout.
SHORT = 5
#: Maximum seconds until the sensor has exited: the kernel detaches its probes one at a time, in up to 100 ms
#: each. The sensor has probes on all servers, including those of other tests.
DETACHED_S = 60.0


@pytest.fixture(scope="module", params=few(NAMES, "mysql-5.6.24", reason="the faults are in the agent"))
def target(request: pytest.FixtureRequest) -> Iterator[Server]:
    """Start a server with an account other than root."""
    with Server(request.param) as server:
        sql(server, f"CREATE USER {ACCOUNT}@localhost IDENTIFIED BY '{PASSWORD}'")
        yield server


@pytest.fixture(scope="module")
def mysql() -> Iterator[Server]:
    with Server("mysql-5.6.24") as server:
        yield server


def sql(server: Server, statement: str) -> list[tuple[object, ...]]:
    connection = server.connect()
    try:
        with connection.cursor() as cursor:
            cursor.execute(statement)
            return list(cursor.fetchall())
    finally:
        connection.close()


def option_file(folder: Path, password: str = PASSWORD) -> Path:
    file = folder / "my.cnf"
    file.write_text(f"[client]\nuser={ACCOUNT}\npassword={password}\n")
    file.chmod(0o644)
    return file


def sql_is(up: int) -> Callable[[Scrape], bool]:
    return lambda scrape: scrape.value("sql_up") == up


def only_sql_is_up(scrape: Scrape) -> bool:
    return (scrape.value("sensor_up"), scrape.value("sql_up")) == (0, 1)


def test_a_stopped_server_delays_no_scrape(target: Server) -> None:
    with Running(target) as agent:
        agent.until(sql_is(1))
        os.kill(target.pid, signal.SIGSTOP)
        try:
            scrape = agent.until(sql_is(0))
            assert scrape.why("sql") == "timeout"
            assert scrape.value("mysqld_up") == 1
            for _ in range(3):
                assert agent.scrape().value("sql_up") == 0
        finally:
            os.kill(target.pid, signal.SIGCONT)
        assert agent.until(sql_is(1)).why("sql") is None


def test_an_agent_starts_beside_a_stopped_server(target: Server) -> None:
    os.kill(target.pid, signal.SIGSTOP)
    try:
        with Running(target) as agent:
            assert agent.scrape().why("sql") == "timeout"
    finally:
        os.kill(target.pid, signal.SIGCONT)


def test_a_short_scrape_timeout_is_kept(target: Server) -> None:
    with Running(target) as agent:
        agent.until(sql_is(1))
        os.kill(target.pid, signal.SIGSTOP)
        try:
            scrapes = []
            for _ in range(SHORT):
                time.sleep(0.3)  # a scrape within this time would reuse the result of the previous collection
                scrapes.append(agent.scrape(X_Prometheus_Scrape_Timeout_Seconds="0.3"))
        finally:
            os.kill(target.pid, signal.SIGCONT)
        assert min(scrape.seconds for scrape in scrapes) < 0.3
        assert {scrape.value("sql_up") for scrape in scrapes} == {0}


def test_too_many_connections_are_reported_as_refused(tmp_path: Path) -> None:
    with Server("mysql-5.6.24", options={"max_connections": 12}) as server:
        sql(server, f"CREATE USER {ACCOUNT}@localhost IDENTIFIED BY '{PASSWORD}'")
        crowd = [server.connect()]
        until(lambda: connected(crowd[0]) == 1)  # the server may still be closing earlier connections
        crowd += [server.connect(user=ACCOUNT, password=PASSWORD) for _ in range(11)]
        try:
            with Running(server, "--defaults-file", option_file(tmp_path)) as agent:
                scrape = agent.until(lambda scrape: scrape.why("sql") == "refused")
                assert scrape.value("sql_up") == 0
                crowd.pop().close()
                agent.until(sql_is(1))
        finally:
            for connection in crowd:
                connection.close()


def test_a_wrong_password_is_reported_as_denied_and_not_shown(target: Server, tmp_path: Path) -> None:
    with Running(target, "--defaults-file", option_file(tmp_path, "not-it-7412")) as agent:
        scrape = agent.until(lambda scrape: scrape.why("sql") == "denied")

        assert scrape.value("sql_up") == 0
        page = agent.get("/")[1].decode()
        assert f"access denied for {ACCOUNT}" in page
        assert "not-it-7412" not in page
        assert PASSWORD not in agent.log


def test_an_account_without_process_yields_the_other_metrics(target: Server, tmp_path: Path) -> None:
    """Check that only INNODB_METRICS and the InnoDB monitor are denied, because they need PROCESS."""
    with Running(target, "--defaults-file", option_file(tmp_path)) as agent:
        scrape = agent.until(sql_is(1))

        assert scrape.value("buffer_pool_pages")
        assert scrape.why("sql") == "denied"
        assert "GRANT PROCESS" in agent.get("/")[1].decode()


def test_a_missing_socket_is_reported_until_it_is_back() -> None:
    with Server("mysql-5.6.24") as server:
        path = server.socket
        with Running(server) as agent:
            agent.until(sql_is(1))
            hidden = path.with_suffix(".hidden")
            path.rename(hidden)
            connection = sql_by(
                server, hidden, "SELECT ID FROM information_schema.PROCESSLIST WHERE ID <> CONNECTION_ID()"
            )
            for (number,) in connection:
                sql_by(server, hidden, f"KILL {number}")
            scrape = agent.until(lambda scrape: scrape.why("sql") == "refused")
            assert (scrape.value("sql_up"), scrape.value("mysqld_up")) == (0, 1)
            hidden.rename(path)
            agent.until(sql_is(1))


def sql_by(server: Server, path: Path, statement: str) -> list[tuple[object, ...]]:
    connection = server.connect(unix_socket=str(path))
    with connection.cursor() as cursor:
        cursor.execute(statement)
        rows = list(cursor.fetchall())
    connection.close()
    return rows


def test_concurrent_scrapes_share_two_connections(mysql: Server) -> None:
    with Running(mysql) as agent:
        agent.until(sql_is(1))
        with ThreadPoolExecutor(20) as pool:
            scrapes = list(pool.map(lambda _: agent.scrape(), range(60)))
        assert all(scrape.value("sql_up") == 1 for scrape in scrapes)
        (count,) = sql(
            mysql, "SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE ID <> CONNECTION_ID()"
        )[0]
        assert count == 2, "one connection for the metrics, and one for the state"


def test_without_a_sensor_sql_metrics_remain(target: Server) -> None:
    with Running(target) as agent:
        scrape = agent.until(sql_is(1))

        assert scrape.value("sensor_up") == 0
        assert scrape.value("mysqld_up") == 1
        assert scrape.value("buffer_pool_pages")
        assert "cannot query the sensor" in agent.get("/")[1].decode()
        assert agent.get("/api/probes")[0] == 503
        assert agent.get("/api/stacks")[0] == 503
        assert agent.get("/-/healthy") == (200, b"Innoscope is healthy.\n")


def test_counters_never_decrease_when_the_sensor_stops_or_restarts(mysql: Server) -> None:
    with Sensing(only=[mysql]) as sensing, Running(mysql, sensor=sensing.path) as agent:
        first = agent.until(
            lambda scrape: scrape.value("threads", wait="background_idle", kind="background") is not None
        )
        assert first.value("sensor_up") == 1

        os.kill(sensing.pid, signal.SIGSTOP)
        stopped = agent.until(only_sql_is_up)
        assert stopped.why("waits") == "gone"
        assert falls(first, stopped) == {}
        os.kill(sensing.pid, signal.SIGCONT)
        back = agent.until(lambda scrape: scrape.value("sensor_up") == 1 and scrape.why("waits") is None)
        assert falls(first, back) == {}
        assert back.value("sensor_restarts_total") == 0

        sensing.kill()
        gone = agent.until(only_sql_is_up)
        assert gone.value("mysqld_up") == 1
        assert falls(back, gone) == {}

        sensing.start()
        again = agent.until(
            lambda scrape: scrape.value("threads", wait="background_idle", kind="background") is not None
        )
        assert again.value("sensor_restarts_total") == 1
        assert falls(back, again) == {}


def test_counters_never_decrease_when_the_server_restarts() -> None:
    with (
        Server("mysql-5.6.24") as server,
        Sensing(only=[server]) as sensing,
        Running(server, sensor=sensing.path) as agent,
    ):
        before = agent.until(lambda scrape: memory_matches_sql(scrape) and scrape.why("waits") is None)
        server.kill()
        dead = agent.until(lambda scrape: scrape.why("sql") == "refused")
        assert (dead.value("sql_up"), dead.value("mysqld_up")) == (0, 0)
        port = server.port
        server.start()
        if server.port == port:
            pytest.fail("the port must change: the agent identifies the server by its socket")
        after = agent.until(lambda scrape: scrape.value("mysqld_up") == 1 and memory_matches_sql(scrape))
        assert falls(before, after) == {}


def memory_matches_sql(scrape: Scrape) -> bool:
    """Return whether memory and SQL agree on a counter that does not change while the server is idle."""
    return scrape.value("memory_sql_difference", name="buffer_pool_pages_read") == 0


def test_the_agent_drops_all_privileges(mysql: Server, folder: Path) -> None:
    with Running(mysql) as agent:
        now = ProcFs().status(agent.pid)
        assert {now[f"Cap{kind}"] for kind in ("Inh", "Prm", "Eff", "Bnd", "Amb")} == {"0" * 16}
        assert now["NoNewPrivs"] == "1"
    sql(mysql, f"CREATE USER {ACCOUNT}@localhost IDENTIFIED BY '{PASSWORD}'")
    sql(mysql, f"GRANT PROCESS ON *.* TO {ACCOUNT}@localhost")
    with Running(mysql, "--defaults-file", option_file(folder), by_hand=True) as agent:
        assert ProcFs().status(agent.pid)["Uid"].split() == ["65534"] * 4
        scrape = agent.until(lambda scrape: scrape.value("sql_up") == scrape.value("sensor_up") == 1)
        assert scrape.why("sql") is None


@pytest.mark.parametrize(
    "how",
    few(
        [signal.SIGTERM, signal.SIGINT, signal.SIGKILL],
        signal.SIGTERM,
        signal.SIGKILL,
        reason="ends like SIGTERM",
    ),
)
def test_the_agents_sensor_ends_with_the_agent(mysql: Server, how: signal.Signals) -> None:
    took = [_seconds_to_end(mysql, how) for _ in range(ENDS)]
    assert min(took) < ENDS_S, took


def _seconds_to_end(mysql: Server, how: signal.Signals) -> float:
    """Return the seconds until an agent has ended. Check that its sensor ends, too."""
    with Running(mysql, by_hand=True) as agent:
        agent.until(lambda scrape: scrape.value("sensor_up") == 1)
        found = subprocess.run(
            ["pgrep", "-f", f"sensor --sensor-socket {agent.sensor}"],
            capture_output=True,
            text=True,
            check=True,
        )
        sensors = [int(pid) for pid in found.stdout.split()]
        assert sensors
        stopwatch = Stopwatch(agent.pid)
        os.kill(agent.pid, how)
        until(lambda: os.waitid(os.P_PID, agent.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG), every_s=0.01)
        took = stopwatch.seconds()
        assert agent.process is not None
        assert agent.process.wait() == (0 if how is not signal.SIGKILL else -9)
        until(
            lambda: not any(Path(f"/proc/{pid}").exists() for pid in sensors),
            lambda: "the sensor still runs",
            within_s=DETACHED_S,
        )
        return took


def test_the_web_configuration_is_reloaded(mysql: Server, tmp_path: Path) -> None:
    file = tmp_path / "web.yaml"
    file.write_text("http_server_config: {headers: {X-Frame-Options: deny}}\n")
    with Running(mysql, "--web.config.file", file) as agent:
        assert agent.get("/-/healthy")[0] == 200
        file.write_text(
            'basic_auth_users: {ann: "$2b$04$abcdefghijklmnopqrstuuTzmo0sVPSpVqaVTcDqCTmQkJ1ZGXEYu"}\n'
        )
        assert agent.get("/-/healthy")[0] == 401
        os.kill(agent.pid, signal.SIGHUP)
        assert agent.get("/metrics")[0] == 401
