"""Test the queries, the interval and the failures of the state collector on a fake server."""

from __future__ import annotations

import threading
from typing import Any

import pymysql
import pytest

from innoscope.common.errors import SqlFailed
from innoscope.common.labels import LIMIT
from innoscope.common.workers import Workers
from innoscope.daemon.agent.servers import SqlChannel
from innoscope.metrics.collectors import sql_catalog, state_catalog
from innoscope.metrics.collectors.errors import CollectorFailed
from innoscope.metrics.collectors.sql import SqlCollector
from innoscope.metrics.collectors.state import Heartbeat, StateCollector

DENIED = pymysql.err.OperationalError(1227, "Access denied; you need the REPLICATION CLIENT privilege")
LOST = pymysql.err.OperationalError(2013, "Lost connection to MySQL server during query (timed out)")
CROWD = "SHOW GLOBAL STATUS"
REPLICA: dict[str, Any] = {
    "Channel_Name": "", "Replica_IO_Running": "Yes", "Replica_SQL_Running": "No", "Last_IO_Errno": 0,
    "Last_SQL_Errno": 1062, "Seconds_Behind_Source": None, "SQL_Delay": 0, "Relay_Log_Space": 4711,
    "Last_SQL_Error": "Duplicate entry 'secret'",
}  # fmt: skip
MEMBER = {
    "MEMBER_STATE": "RECOVERING", "MEMBER_ROLE": "SECONDARY", "ONLINE_MEMBERS": 2,
    "COUNT_TRANSACTIONS_REMOTE_IN_APPLIER_QUEUE": 7,
}  # fmt: skip


class Server:
    """A fake server that returns or raises the prepared answer for the first words of a statement."""

    user = b"ann"
    where = "/run/mysqld.sock"
    server_version = "8.0.36"

    def __init__(self, **answers: Any) -> None:
        self.answers = {
            CROWD: [{"name": "Innodb_row_lock_current_waits", "value": "0"}],
            "SELECT IFNULL": [{"seconds": 12}],
            **answers,
        }
        self.statements: list[str] = []
        self.abandoned = 0

    def __call__(self) -> Any:
        return self

    def cursor(self) -> Server:
        return self

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None: ...

    def forget_result(self) -> None: ...

    def abandon(self) -> None:
        self.abandoned += 1

    def execute(self, statement: str) -> None:
        self.statements.append(statement)
        answer: Any = next((v for start, v in self.answers.items() if statement.startswith(start)), [])
        if isinstance(answer, Exception):
            raise answer
        self._rows = [tuple(row.values()) for row in answer]
        self.description = [(name,) for name in (answer[0] if answer else {})]

    def fetchall(self) -> list[tuple[Any, ...]]:
        return self._rows


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def collector(
    server: Server, flavour: str = "mysql", version: tuple[int, ...] = (8, 0, 36), **options: Any
) -> tuple[StateCollector, Clock]:
    clock = Clock()
    return (
        StateCollector(server, state_catalog.default(), flavour, version, clock=clock, **options),
        clock,
    )


def values(samples: Any) -> dict[str, Any]:
    return {".".join((sample.metric, *sample.labels)): sample.value for sample in samples}


def test_replica_with_a_stopped_applier() -> None:
    found = values(collector(Server(**{"SHOW REPLICA": [REPLICA]}))[0].collect())

    assert found == {
        "oldest_transaction_age_seconds": 12,
        "replication_running..receiver": 1,
        "replication_running..applier": 0,
        "replication_error..receiver": 0,
        "replication_error..applier": 1062,
        "replication_delay_seconds.": 0,
        "replication_relay_log_bytes.": 4711,
    }  # the lag is missing, because the server does not know it


def test_mariadb_names_its_connections_and_an_old_server_has_other_columns() -> None:
    row = {"Connection_name": "east", "Slave_IO_Running": "Connecting", "Slave_SQL_Running": "Yes",
           "Seconds_Behind_Master": 3}  # fmt: skip
    maria = Server(**{"SHOW ALL SLAVES": [row]})
    found = values(collector(maria, "mariadb", (10, 11, 6))[0].collect())

    assert found["replication_running.east.receiver"] == 0
    assert found["replication_running.east.applier"] == 1
    assert found["replication_lag_seconds.east"] == 3
    assert "replication_delay_seconds.east" not in found

    old = Server(**{"SHOW SLAVE": [row]})
    assert "replication_lag_seconds.east" in values(collector(old, version=(5, 5, 9))[0].collect())


def test_member_of_a_group_has_one_state_and_its_channels_are_omitted() -> None:
    channels = [REPLICA | {"Channel_Name": "group_replication_recovery"}]
    server = Server(**{"SELECT m.MEMBER_STATE": [MEMBER], "SHOW REPLICA": channels})
    found = values(collector(server)[0].collect())

    assert [name for name, value in found.items() if "group_member_state" in name and value] == [
        "group_member_state.recovering"
    ]
    assert found["group_member_primary"] == 0
    assert found["group_members_online"] == 2
    assert found["group_applier_queue"] == 7
    assert not any(name.startswith("replication_") for name in found)


def test_queries_run_at_the_interval() -> None:
    server = Server()
    state, clock = collector(server, interval_s=10)
    first = state.collect()
    asked = len(server.statements)
    clock.now += 9

    assert list(state.collect()) == list(first)
    assert len(server.statements) == asked
    clock.now += 1
    state.collect()
    assert len(server.statements) > asked


def test_a_query_that_hangs_is_retried_less_and_less_often() -> None:
    server = Server(**{"SHOW REPLICA": LOST})
    state, clock = collector(server, interval_s=10)
    attempts = 0
    for _ in range(120):
        server.statements.clear()
        with pytest.raises(CollectorFailed) as caught:
            state.collect()
        assert caught.value.reason == "timeout"
        attempts += bool(server.statements)
        clock.now += 1

    assert attempts == 4  # at 0, 10, 30 and 70 s
    assert server.abandoned == 4


def test_a_missing_privilege_is_reported_and_the_other_queries_run() -> None:
    server = Server(**{"SELECT m.MEMBER_STATE": DENIED, "SHOW REPLICA": [REPLICA]})
    state, clock = collector(server)
    found = values(state.collect())

    assert "replication_running..applier" in found
    assert state.shortfall is not None
    assert state.shortfall.startswith("denied: ")

    server.answers["SELECT m.MEMBER_STATE"] = []
    clock.now += 10
    state.collect()
    assert state.shortfall is None


def test_transactions_are_not_queried_while_many_threads_wait() -> None:
    crowd = [{"name": "Innodb_row_lock_current_waits", "value": "301"}]
    server = Server(**{CROWD: crowd, "SHOW REPLICA": [REPLICA]})
    found = values(collector(server)[0].collect())

    assert "oldest_transaction_age_seconds" not in found
    assert "replication_running..applier" in found


def test_heartbeat_is_read_if_it_is_configured() -> None:
    rows = [{"server_id": 1, "seconds": "0.512"}]
    server = Server(**{"SELECT server_id": rows})
    state, _ = collector(server, heartbeat=Heartbeat("percona.heartbeat", utc=True))

    assert values(state.collect())["replication_heartbeat_lag_seconds.1"] == 0.512
    assert "UTC_TIMESTAMP(6)" in server.statements[-1]
    assert "FROM `percona`.`heartbeat` " in server.statements[-1]

    without = Server()
    collector(without)[0].collect()
    assert not any(one.startswith("SELECT server_id") for one in without.statements)


def test_a_server_on_another_host_is_recognized_by_its_greeting() -> None:
    server = Server(**{"SHOW ALL SLAVES": []})
    server.server_version = "5.5.5-10.6.18-MariaDB-log"
    collector(server, "", ())[0].collect()

    assert "SHOW ALL SLAVES STATUS" in server.statements


def test_answers_of_a_hostile_server_are_bounded() -> None:
    rows = [REPLICA | {"Channel_Name": f"c{n}", "SQL_Delay": "nan", "Last_SQL_Errno": "x"} for n in range(99)]
    found = values(collector(Server(**{"SHOW REPLICA": rows}))[0].collect())

    assert len({name for name in found if name.endswith("receiver")}) == 32
    assert not any(name.startswith("replication_delay") or "error.c0.applier" in name for name in found)


def test_names_of_a_hostile_server_are_cut() -> None:
    rows = [REPLICA | {"Channel_Name": f"{n}\x1b" + n * 250_000} for n in ("a", "b")]
    names = {sample.labels[0] for sample in collector(Server(**{"SHOW REPLICA": rows}))[0].collect()
             if sample.metric == "replication_running"}  # fmt: skip

    assert len(names) == 2
    assert all(len(name) <= LIMIT and name.isprintable() for name in names)


def test_a_query_that_hangs_does_not_affect_the_other_connection() -> None:
    released = threading.Event()

    def hang() -> Any:
        released.wait()
        raise SqlFailed("no SQL: the test is over", remedy="none")

    metrics = SqlCollector(Server(), sql_catalog.default(), "mysql", (8, 0, 36))
    state = StateCollector(hang, state_catalog.default(), "mysql", (8, 0, 36))
    channel = SqlChannel(metrics, state, lambda _: hang(), Workers(size=2), "orders")
    try:
        for words in ("no answer within", "still running after"):
            channel.start(1.5)
            answered, hung = channel.outcomes()

            assert answered.success
            assert hung.reason is not None
            assert hung.reason.startswith(f"timeout: {words}")
    finally:
        released.set()
        channel.close()
