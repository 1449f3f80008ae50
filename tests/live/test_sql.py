"""Test that the SQL collector's values equal the server's variables and the values in its memory."""

from __future__ import annotations

import itertools
import os
import signal
import time
from contextlib import closing
from statistics import fmean, median
from typing import TYPE_CHECKING, Any

import pytest

from certificates import self_signed
from innoscope.common.errors import SqlFailed
from innoscope.memory.reader import MemoryReader
from innoscope.metrics.collectors import sql_catalog
from innoscope.metrics.collectors.errors import CollectorFailed
from innoscope.metrics.collectors.sql import SqlCollector
from innoscope.target import sql
from innoscope.target.discover import find_one
from servers import Server

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

#: Metrics that every server provides over SQL.
EVERYWHERE = {
    "buffer_pool_pages", "buffer_pool_dirty_pages", "buffer_pool_free_pages", "buffer_pool_data_pages",
    "buffer_pool_other_pages", "buffer_pool_dirty_ratio", "buffer_pool_dirty_limit_ratio",
    "buffer_pool_dirty_headroom_ratio", "buffer_pool_pages_read", "buffer_pool_pages_written",
    "buffer_pool_read_requests", "buffer_pool_reads", "free_block_waits", "read_ahead_pages.linear",
    "read_ahead_evicted_pages", "doublewrite_pages", "redo_written_bytes", "redo_flushed_bytes",
    "redo_checkpoint_bytes", "checkpoint_age_bytes", "checkpoint_age_max_bytes", "checkpoint_age_ratio",
    "checkpoint_zone.calm", "redo_buffer_waits", "row_lock_waits", "row_lock_current_waits",
    "history_list_length", "table_opens", "connections", "connections_running", "connections_limit",
    "statements", "uptime_seconds",
}  # fmt: skip
#: Metrics that only some servers have.
SOME = {
    "read_ahead_pages.random": {"mysql-5.6.24", "mysql-9.7", "mariadb-10.11", "mariadb-11.4.5"},
    "deadlocks": {"mysql-9.7", "mariadb-10.11", "mariadb-11.4.5"},
    "deadlock_searches": {"mysql-9.7"},
    "flushed_pages.lru": {"mariadb-10.11", "mariadb-11.4.5"},
    "change_buffer_merges": {"mysql-5.5.9", "mysql-5.6.24", "mysql-9.7", "mariadb-10.11"},
}
#: Status variables that do not change on an idle server, and their metrics.
STILL = {
    "Innodb_pages_written": "buffer_pool_pages_written",
    "Innodb_buffer_pool_pages_total": "buffer_pool_pages",
    "Innodb_dblwr_pages_written": "doublewrite_pages",
    "Innodb_row_lock_waits": "row_lock_waits",
}
#: Values that must at some time be the same in memory and over SQL.
ALWAYS_COMPARED = {"checkpoint_age_max_bytes", "redo_written_bytes", "buffer_pool_free_pages"}
#: Minimum number of comparisons.
ROUNDS = 20
PATIENCE_S = 60
#: The timeout of a login and of a statement. It is long enough for a busy host to answer.
TIMEOUT_S = 6


@pytest.fixture
def collector(any_server: Server) -> Iterator[SqlCollector]:
    made = of(any_server)
    yield made
    made.close()


def of(server: Server, **account: Any) -> SqlCollector:
    target = find_one(server.pid)
    return SqlCollector(
        lambda: sql.connect(target, **{"user": "root", "timeout": PATIENCE_S, **account}),
        sql_catalog.default(), target.flavour, target.version,
    )  # fmt: skip


def values(collector: SqlCollector) -> dict[str, Any]:
    return {".".join((one.metric, *one.labels)): one.value for one in collector.collect()}


def status(server: Server) -> dict[str, int]:
    return {name: int(value) for name, value in server.sql("SHOW GLOBAL STATUS") if name in STILL}


def test_every_generation_has_its_metrics(any_server: Server, collector: SqlCollector) -> None:
    found = values(collector)

    assert found.keys() >= EVERYWHERE
    for name, servers in SOME.items():
        assert (name in found) is (any_server.name in servers), name
    assert collector.shortfall is None
    assert found["redo_checkpoint_bytes"] <= found["redo_written_bytes"]


def test_values_equal_the_servers_status(any_server: Server, collector: SqlCollector) -> None:
    before = status(any_server)
    found = values(collector)
    after = status(any_server)

    for name, metric in STILL.items():
        assert before[name] <= found[metric] <= after[name], metric
    assert found["connections_limit"] == 2500


def test_a_collection_takes_less_than_5_ms_of_cpu(any_server: Server, collector: SqlCollector) -> None:
    """Use the median, because time in which a hypervisor runs other machines can count as CPU time."""
    collector.collect()
    used = []
    for _ in range(50):
        before = time.process_time()
        collector.collect()
        used.append(time.process_time() - before)

    assert median(used) < 0.005
    assert fmean(used) < 0.01


def test_session_does_not_wait_for_locks(any_server: Server, collector: SqlCollector) -> None:
    """Check that a global read lock does not delay the collector, and that its session has short timeouts."""
    collector.collect()
    with closing(any_server.connect()) as other, other.cursor() as cursor:
        cursor.execute("CREATE DATABASE IF NOT EXISTS locked")
        cursor.execute("CREATE TABLE IF NOT EXISTS locked.t1 (a INT) ENGINE=InnoDB")
        cursor.execute("FLUSH TABLES WITH READ LOCK")
        try:
            # a statement that waited for the lock would fail after lock_wait_timeout
            assert values(collector)["uptime_seconds"] >= 0
        finally:
            cursor.execute("UNLOCK TABLES")
    session = collector._session
    assert session is not None
    variables = dict(session._rows("SHOW SESSION VARIABLES"))
    assert int(variables["lock_wait_timeout"]) == 1
    assert float(variables["long_query_time"]) == 3600


def _as_in_memory(found: dict[str, Any]) -> dict[str, Any]:
    """Return the values with 0 as the oldest change if no page is dirty; MySQL then prints the current LSN.

    log_buf_pool_get_oldest_modification in log0log.cc (5.6.24).
    """
    oldest = "redo_oldest_change_bytes"
    return found | {oldest: 0} if found.get(oldest) == found["redo_written_bytes"] else found


@pytest.mark.parametrize("name", ["mysql-5.5.9", "mysql-5.6.24", "mariadb-11.4.5"])
def test_memory_has_the_same_values(name: str, server: Any) -> None:
    """Compare values that do not change on an idle server, such as the computed checkpoint age limit.

    The server may still be busy with the work of earlier tests, such as purging the tables that they dropped.
    """
    running = server(name)
    reader = MemoryReader(find_one(running.pid))
    collector = of(running)
    reader.read()
    collector.collect()
    compared: set[str] = set()
    deadline = time.monotonic() + PATIENCE_S
    for number in itertools.count(1):
        before, by_sql, after = reader.read(), _as_in_memory(values(collector)), reader.read()
        still = {key for key in before if before[key] == after.get(key)} & by_sql.keys()
        equal = {key for key in still if by_sql[key] == pytest.approx(before[key])}
        compared |= equal
        if number >= ROUNDS and compared >= ALWAYS_COMPARED and still <= compared:
            break
        different = {key: (before[key], by_sql[key]) for key in still - compared}
        assert time.monotonic() < deadline, (different, ALWAYS_COMPARED - compared)
    collector.close()


def test_server_that_ends_is_reported_as_gone() -> None:
    with Server("mysql-5.6.24") as server:
        collector = of(server)
        collector.collect()
        server.kill()
        with pytest.raises(CollectorFailed) as caught:
            collector.collect()
        assert caught.value.reason == "gone"


def test_hung_server_causes_a_timeout() -> None:
    with Server("mysql-5.6.24") as server:
        collector = of(server, timeout=TIMEOUT_S)
        collector.collect()
        os.kill(server.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, server.pid, os.WSTOPPED | os.WNOWAIT)  # waits until all threads are stopped
        try:
            began = time.monotonic()
            with pytest.raises(CollectorFailed) as caught:
                collector.collect()
            assert time.monotonic() - began < 2 * TIMEOUT_S
        finally:
            os.kill(server.pid, signal.SIGCONT)
        assert caught.value.reason == "timeout"


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, Path]]:
    """Yield a MariaDB server that supports TLS over TCP, and the directory of its certificate."""
    folder = tmp_path_factory.mktemp("tls")
    self_signed(folder)
    options = {"ssl_cert": str(folder / "cert.pem"), "ssl_key": str(folder / "key.pem")}
    with Server("mariadb-10.11", options=options) as server:
        server.sql("CREATE USER innoscope@'127.0.0.1' IDENTIFIED BY 'p' REQUIRE SSL")
        yield server, folder


def my_cnf(folder: Path, *lines: str) -> str:
    file = folder / "my.cnf"
    file.write_text("\n".join(("[client]", "user=innoscope", "password=p", *lines)))
    return str(file)


def test_tcp_with_tls(tls: tuple[Server, Path]) -> None:
    server, folder = tls
    ca = f"ssl-ca={folder / 'cert.pem'}"
    for lines in ((ca, "ssl-verify-server-cert"), (ca,), ("ssl-mode=REQUIRED",)):
        connection = sql.connect_tcp(
            "127.0.0.1", server.port, my_cnf(folder, *lines), timeout=PATIENCE_S, target=find_one(server.pid)
        )
        with closing(connection), connection.cursor() as cursor:
            cursor.execute("SHOW STATUS LIKE 'Ssl_cipher'")
            row = cursor.fetchone()
            assert row is not None
            assert row[1], lines


def test_tcp_without_the_requested_tls_is_refused(tls: tuple[Server, Path], server: Any) -> None:
    tls_server, folder = tls
    with pytest.raises(SqlFailed, match="access denied"):  # the account requires TLS
        sql.connect_tcp(
            "127.0.0.1", tls_server.port, my_cnf(folder), timeout=PATIENCE_S, target=find_one(tls_server.pid)
        )
    self_signed(folder, "other-")
    with pytest.raises(SqlFailed, match="certificate"):
        sql.connect_tcp(
            "127.0.0.1",
            tls_server.port,
            my_cnf(folder, f"ssl-ca={folder}/other-cert.pem"),
            timeout=PATIENCE_S,
            target=find_one(tls_server.pid),
        )
    plain = server("mariadb-11.4.5")  # this server runs with --skip-ssl
    with pytest.raises(SqlFailed, match=r"does not support TLS|SSL"):
        sql.connect_tcp(
            "127.0.0.1",
            plain.port,
            my_cnf(folder, "ssl-mode=REQUIRED"),
            user="root",
            timeout=PATIENCE_S,
            target=find_one(plain.pid),
        )


def test_enabled_innodb_metrics_are_collected() -> None:
    with Server("mysql-5.6.24") as server:
        server.sql("SET GLOBAL innodb_monitor_enable = 'buffer_flush_batch%'")
        server.sql("SET GLOBAL innodb_monitor_enable = 'log_lsn%'")
        collector = of(server)
        found = values(collector)
        collector.close()

        assert "flushed_pages.list" in found
        assert found["redo_written_bytes"] > 0
