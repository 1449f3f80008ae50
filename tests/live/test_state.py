"""Test the metrics of replication, clusters and transactions on real servers."""

from __future__ import annotations

import threading
import time
from contextlib import closing
from statistics import fmean, median
from typing import TYPE_CHECKING

import pytest

from clusters import GaleraCluster, ReplicationGroup
from clusters.galera import SERVER as GALERA
from clusters.group_replication import SERVER as GROUP
from incidents.scenes_replica import OPTIONS, following
from innoscope.common.samples import Sample
from innoscope.metrics.collectors import state_catalog
from innoscope.metrics.collectors.errors import CollectorFailed
from innoscope.metrics.collectors.state import Heartbeat, StateCollector
from innoscope.target import sql
from innoscope.target.discover import find_one
from innoscope.target.unanswered import Unanswered
from live.sql_metrics import SEVEN_SECONDS_AGO, collected
from scale import few, long
from servers import ADDED, NAMES, Server
from waiting import until

if TYPE_CHECKING:
    from collections.abc import Callable

#: Error number of ER_DUP_ENTRY.
DUPLICATE = 1062


def test_a_single_server_has_transactions_but_no_replication(any_server: Server) -> None:
    assert collected(any_server)["oldest_transaction_age_seconds"] < 60  # of purge or the dictionary
    with closing(any_server.connect()) as connection, connection.cursor() as cursor:
        cursor.execute("CREATE DATABASE IF NOT EXISTS old")
        cursor.execute("CREATE TABLE IF NOT EXISTS old.t (a INT PRIMARY KEY) ENGINE=InnoDB")
        # a time zone that differs from the system's must not change the age
        cursor.execute("SET GLOBAL time_zone = '+05:00'")
        cursor.execute("BEGIN")
        cursor.execute("INSERT INTO old.t VALUES (1)")
        try:
            # INNODB_TRX is refreshed only if it has not been read for 0.1 s.
            until(lambda: 1 <= collected(any_server)["oldest_transaction_age_seconds"] < 60, every_s=0.2)
        finally:
            cursor.execute("ROLLBACK")
            cursor.execute("SET GLOBAL time_zone = SYSTEM")
        cursor.execute("SET GLOBAL read_only = ON")
        try:
            found = collected(any_server)
        finally:
            cursor.execute("SET GLOBAL read_only = OFF")

    assert found["read_only"] == 1
    assert collected(any_server)["read_only"] == 0
    assert not [name for name in found if name.startswith(("replication_", "group_", "galera_", "semisync_"))]


@pytest.mark.parametrize(
    "name", few((*NAMES, *ADDED), "mysql-9.7", "mariadb-10.11", reason="the statements of both flavours")
)
def test_replica_that_lags_and_stops(name: str) -> None:
    heartbeat = Heartbeat("shop.heartbeat", utc=False)
    with Server(name, options=OPTIONS) as replica, following(replica) as pair:
        pair.change("CREATE TABLE shop.heartbeat (ts VARCHAR(26) NOT NULL, server_id INT PRIMARY KEY)")
        pair.change(f"REPLACE INTO shop.heartbeat SELECT {SEVEN_SECONDS_AGO}, 1")
        until(lambda: replica.sql("SHOW TABLES IN shop LIKE 'heartbeat'"))
        until(lambda: replica.sql("SELECT 1 FROM shop.heartbeat"))
        found = collected(replica, heartbeat)
        assert found["replication_running..receiver"] == found["replication_running..applier"] == 1
        assert found["replication_lag_seconds."] < 5
        assert 7 <= found["replication_heartbeat_lag_seconds.1"] < 60
        assert found["replication_relay_log_bytes."] > 0

        with closing(replica.connect(database="shop")) as holder, holder.cursor() as cursor:
            cursor.execute("BEGIN")
            cursor.execute("UPDATE stock SET b = 1 WHERE a = 1")
            pair.change("UPDATE shop.stock SET b = 2 WHERE a = 1")
            until(lambda: collected(replica).get("replication_lag_seconds.", 0) >= 2)

        pair.stop()
        found = collected(replica)
        assert found["replication_running..receiver"] == found["replication_running..applier"] == 0
        assert "replication_lag_seconds." not in found

        pair.start()
        pair.ask("INSERT INTO shop.stock VALUES (3, 0)")
        pair.change("INSERT INTO shop.stock VALUES (3, 0)")
        until(lambda: collected(replica)["replication_error..applier"] == DUPLICATE)
        assert collected(replica)["replication_running..receiver"] == 1


@long("tests/unit/test_unanswered.py has connections that are not answered")
def test_status_that_hangs_behind_stop_slave_is_abandoned() -> None:
    """Check that MySQL 5.6 does not respond while STOP SLAVE waits for the applier, and responds afterwards.

    Meanwhile, repeated attempts must not use up the server's connections.
    """
    with (
        Server("mysql-5.6.24", options=OPTIONS) as replica,
        following(replica) as pair,
        closing(replica.connect(database="shop")) as holder,
        holder.cursor() as cursor,
    ):
        now = 0.0
        target, unanswered = find_one(replica.pid), Unanswered()
        state = StateCollector(
            lambda: sql.connect(target, user="root", timeout=1, unanswered=unanswered),
            state_catalog.default(), target.flavour, target.version, 0, clock=lambda: now,
        )  # fmt: skip
        cursor.execute("BEGIN")
        cursor.execute("UPDATE stock SET b = 1 WHERE a = 1")
        pair.change("UPDATE shop.stock SET b = 2 WHERE a = 1")
        until(lambda: collected(replica)["row_lock_current_waits"] == 1)
        stopping = threading.Thread(target=pair.stop)
        stopping.start()
        try:
            until(
                lambda: replica.sql("SELECT 1 FROM information_schema.PROCESSLIST WHERE INFO = 'STOP SLAVE'")
            )
            for _ in range(8):
                with pytest.raises(CollectorFailed) as caught:
                    state.collect()
                assert caught.value.reason == "timeout"
                now += 3600
            stuck = replica.sql("SELECT ID FROM information_schema.PROCESSLIST WHERE INFO LIKE 'SHOW %'")
            assert len(stuck) == 1
        finally:
            cursor.execute("ROLLBACK")
            stopping.join()
        until(
            lambda: not replica.sql("SELECT 1 FROM information_schema.PROCESSLIST WHERE INFO LIKE 'SHOW %'")
        )
        now += 3600
        with closing(state):
            assert Sample("replication_running", 0, ("", "applier")) in state.collect()


@long("tests/unit/test_state_collector.py tests the columns of a group")
def test_member_of_a_replication_group() -> None:
    with Server(GROUP) as first, ReplicationGroup(first) as group:
        primary, secondary = group.nodes[:2]
        found = collected(primary)
        assert found["group_member_state.online"] == found["group_member_primary"] == 1
        assert found["group_members_online"] == 3
        assert found["group_applier_queue"] >= 0
        assert not any(name.startswith("replication_running") for name in found)
        assert collected(secondary)["group_member_primary"] == 0

        secondary.sql("STOP GROUP_REPLICATION")
        found = collected(secondary)
        assert found["group_member_state.offline"] == 1
        assert found["super_read_only"] == 1
        until(lambda: collected(primary)["group_members_online"] == 2)


@long("tests/unit/test_sql_collector.py has the conditions of Galera's variables")
def test_node_of_a_galera_cluster() -> None:
    with Server(GALERA) as first, GaleraCluster(first) as cluster:
        found = collected(first)
        assert found["galera_ready"] == found["galera_primary"] == 1
        assert found["galera_state"] == 4
        assert found["galera_nodes"] == 3

        first.sql("SET GLOBAL wsrep_cluster_address = ''")  # the node leaves the cluster
        found = collected(first)
        assert found["galera_ready"] == found["galera_primary"] == 0
        until(lambda: collected(cluster.nodes[1])["galera_nodes"] == 2)


def test_a_collection_is_cheap(server: Callable[[str], Server]) -> None:
    """Check that a round of queries costs an idle server less than 20 ms of CPU time.

    Use the median, because the server may still be busy with the work of earlier tests for a moment.
    """
    target = find_one(server("mysql-9.7").pid)
    state = StateCollector(
        lambda: sql.connect(target, user="root", timeout=5), state_catalog.default(), "mysql", (9, 7), 0
    )
    durations = []
    with closing(state):
        state.collect()
        for _ in range(20):
            before = server_seconds(server("mysql-9.7"))
            state.collect()
            durations.append(server_seconds(server("mysql-9.7")) - before)

    assert median(durations) < 0.02
    assert fmean(durations) < 0.04


def server_seconds(server: Server) -> float:
    """Return the CPU time of the server's process in seconds."""
    return time.clock_gettime(~server.pid << 3 | 2)  # MAKE_PROCESS_CPUCLOCK(pid, CPUCLOCK_SCHED)
