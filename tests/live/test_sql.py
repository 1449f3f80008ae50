"""The SQL collector on the five servers: what it tells is what the server says, and memory says the same."""

from __future__ import annotations

import os
import signal
import time
from contextlib import closing
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
from live import figures
from servers import Server

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

#: What every generation tells over SQL.
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
#: And what some do not, with the servers that do.
SOME = {
    "read_ahead_pages.random": {"mysql-5.6.24", "mysql-9.7", "mariadb-10.11", "mariadb-11.4.5"},
    "deadlocks": {"mysql-9.7", "mariadb-10.11", "mariadb-11.4.5"},
    "deadlock_searches": {"mysql-9.7"},
    "flushed_pages.lru": {"mariadb-10.11", "mariadb-11.4.5"},
    "change_buffer_merges": {"mysql-5.5.9", "mysql-5.6.24", "mysql-9.7", "mariadb-10.11"},
}
#: Status variables that stand still on an idle server, and the metrics they are.
STILL = {
    "Innodb_pages_written": "buffer_pool_pages_written",
    "Innodb_buffer_pool_pages_total": "buffer_pool_pages",
    "Innodb_dblwr_pages_written": "doublewrite_pages",
    "Innodb_row_lock_waits": "row_lock_waits",
}


@pytest.fixture
def collector(any_server: Server) -> Iterator[SqlCollector]:
    made = of(any_server)
    yield made
    made.close()


def of(server: Server, **account: Any) -> SqlCollector:
    target = find_one(server.pid)
    return SqlCollector(
        lambda: sql.connect(target, **{"user": "root", "timeout": 5, **account}),
        sql_catalog.default(), target.flavour, target.version,
    )  # fmt: skip


def values(collector: SqlCollector) -> dict[str, Any]:
    return {".".join((one.metric, *one.labels)): one.value for one in collector.collect()}


def said(server: Server, statement: str) -> dict[str, str]:
    with closing(server.connect()) as connection, connection.cursor() as cursor:
        cursor.execute(statement)
        return {str(row[0]): str(row[1]) for row in cursor.fetchall()}


def test_every_generation_tells_what_it_has(any_server: Server, collector: SqlCollector) -> None:
    found = values(collector)

    assert found.keys() >= EVERYWHERE
    for name, servers in SOME.items():
        assert (name in found) is (any_server.name in servers), name
    assert collector.shortfall is None
    assert found["redo_checkpoint_bytes"] <= found["redo_written_bytes"]


def test_it_is_what_the_server_says(any_server: Server, collector: SqlCollector) -> None:
    before = said(any_server, "SHOW GLOBAL STATUS")
    found = values(collector)
    after = said(any_server, "SHOW GLOBAL STATUS")

    for status, metric in STILL.items():
        assert int(before[status]) <= found[metric] <= int(after[status]), metric
    assert found["connections_limit"] == 2500


def test_a_collection_costs_little(any_server: Server, collector: SqlCollector) -> None:
    collector.collect()
    used, began = time.process_time(), time.monotonic()
    for _ in range(50):
        collector.collect()
    cpu, wall = (time.process_time() - used) * 20, (time.monotonic() - began) * 20
    text = f"{cpu:.2f} ms of our CPU, {wall:.1f} ms until it was there"
    figures.record("SQL collector", any_server.name, text, cpu_ms=cpu, wall_ms=wall)

    assert cpu < 5


def test_it_is_one_session_that_waits_for_nothing_long(any_server: Server, collector: SqlCollector) -> None:
    """DDL holds an exclusive metadata lock, and everything here goes on."""
    collector.collect()
    with closing(any_server.connect()) as other, other.cursor() as cursor:
        cursor.execute("CREATE DATABASE IF NOT EXISTS locked")
        cursor.execute("CREATE TABLE IF NOT EXISTS locked.t1 (a INT) ENGINE=InnoDB")
        cursor.execute("FLUSH TABLES WITH READ LOCK")
        try:
            began = time.monotonic()
            assert values(collector)["uptime_seconds"] >= 0
            assert time.monotonic() - began < 1
        finally:
            cursor.execute("UNLOCK TABLES")
    session = collector._session
    assert session is not None
    names = {name for name, _ in session._rows("SHOW SESSION VARIABLES")}
    told = dict(session._rows("SHOW SESSION VARIABLES"))
    assert {
        name for name in ("max_execution_time", "max_statement_time", "lock_wait_timeout") if name in names
    }
    assert int(told["lock_wait_timeout"]) == 1
    assert float(told["long_query_time"]) == 3600


@pytest.mark.parametrize("name", ["mysql-5.5.9", "mysql-5.6.24", "mariadb-11.4.5"])
def test_memory_says_the_same(name: str, server: Any) -> None:
    """On an idle server, read one after the other; the limit that we compute is the one that InnoDB has."""
    running = server(name)
    reader = MemoryReader(find_one(running.pid))
    asked = of(running)
    reader.read()
    asked.collect()
    compared: set[str] = set()
    for _ in range(20):
        before, told, after = reader.read(), values(asked), reader.read()
        still = {key for key in before if before[key] == after.get(key)}
        for key in (still & told.keys()) - compared:
            if told[key] == pytest.approx(before[key]):
                compared.add(key)
    wrong = {key: (before[key], told[key]) for key in (still & told.keys()) - compared}
    asked.close()

    assert wrong == {}
    assert {"checkpoint_age_max_bytes", "redo_written_bytes", "buffer_pool_free_pages"} <= compared


def test_a_server_that_ends_while_it_answers() -> None:
    with Server("mysql-5.6.24") as server:
        asked = of(server)
        asked.collect()
        server.kill()
        with pytest.raises(CollectorFailed) as caught:
            asked.collect()
        assert caught.value.reason == "gone"


def test_a_hung_server_is_given_up() -> None:
    with Server("mysql-5.6.24") as server:
        asked = of(server, timeout=0.3)
        asked.collect()
        os.kill(server.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, server.pid, os.WSTOPPED | os.WNOWAIT)  # all of its threads
        try:
            began = time.monotonic()
            with pytest.raises(CollectorFailed) as caught:
                asked.collect()
            assert time.monotonic() - began < 0.6
        finally:
            os.kill(server.pid, signal.SIGCONT)
        assert caught.value.reason == "timeout"


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, Path]]:
    """A MariaDB that speaks TLS over TCP, and its certificate."""
    folder = tmp_path_factory.mktemp("tls")
    self_signed(folder)
    options = {"ssl_cert": str(folder / "cert.pem"), "ssl_key": str(folder / "key.pem")}
    with Server("mariadb-10.11", options=options) as server:
        said(server, "SHOW STATUS LIKE 'nothing'")
        with closing(server.connect()) as connection, connection.cursor() as cursor:
            cursor.execute("CREATE USER innoscope@'127.0.0.1' IDENTIFIED BY 'p' REQUIRE SSL")
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
            "127.0.0.1", server.port, my_cnf(folder, *lines), timeout=5, target=find_one(server.pid)
        )
        with closing(connection), connection.cursor() as cursor:
            cursor.execute("SHOW STATUS LIKE 'Ssl_cipher'")
            row = cursor.fetchone()
            assert row is not None
            assert row[1], lines


def test_tcp_without_the_tls_that_was_asked_for_is_refused(tls: tuple[Server, Path], server: Any) -> None:
    tls_server, folder = tls
    with pytest.raises(SqlFailed, match="access denied"):  # its account requires TLS
        sql.connect_tcp(
            "127.0.0.1", tls_server.port, my_cnf(folder), timeout=5, target=find_one(tls_server.pid)
        )
    self_signed(folder, "other-")
    with pytest.raises(SqlFailed, match="certificate"):
        sql.connect_tcp(
            "127.0.0.1",
            tls_server.port,
            my_cnf(folder, f"ssl-ca={folder}/other-cert.pem"),
            timeout=5,
            target=find_one(tls_server.pid),
        )
    plain = server("mariadb-11.4.5")  # started with --skip-ssl
    with pytest.raises(SqlFailed, match=r"does not speak TLS|SSL"):
        sql.connect_tcp(
            "127.0.0.1",
            plain.port,
            my_cnf(folder, "ssl-mode=REQUIRED"),
            user="root",
            timeout=5,
            target=find_one(plain.pid),
        )


def test_a_counter_that_is_enabled_is_told() -> None:
    with Server("mysql-5.6.24") as server:
        with closing(server.connect()) as connection, connection.cursor() as cursor:
            cursor.execute("SET GLOBAL innodb_monitor_enable = 'buffer_flush_batch%'")
            cursor.execute("SET GLOBAL innodb_monitor_enable = 'log_lsn%'")
        asked = of(server)
        found = values(asked)
        asked.close()

        assert "flushed_pages.list" in found
        assert found["redo_written_bytes"] > 0
