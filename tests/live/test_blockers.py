"""`diagnose` names the blocker, using only the account of packaging/account.sql and no debug information."""

from __future__ import annotations

import json
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from innoscope.diagnose.blockers import RECORD_METADATA_LOCKS
from install.test_account import PASSWORD, statements
from safety.command import innoscope
from scale import few
from servers import Server
from waiting import until
from workloads import Idle, MetadataLock, RowLock
from workloads.crowd import Crowd

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

FOUND = 18
SECONDS = 2
WAITERS = 8
SERVERS = few(
    ("mysql-5.7.22", "mysql-8.0.31", "mysql-9.7"), "mysql-5.7.22", "mysql-8.0.31", reason="like 8.0.31"
)


@pytest.fixture(scope="module", params=SERVERS)
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    """Yield a server with the account and with recording of metadata locks, which 5.7 disables by default."""
    with Server(request.param) as server:
        server.sql(RECORD_METADATA_LOCKS, *statements(PASSWORD))
        yield server


@pytest.fixture
def option_file(tmp_path: Path) -> Path:
    path = tmp_path / "my.cnf"
    path.write_text(f'[client]\nuser = innoscope\npassword = "{PASSWORD}"\n')
    path.chmod(0o600)
    return path


@contextmanager
def _global_read_lock(server: Server) -> Iterator[int]:
    """Hold the global read lock while clients want to write. Yield the holder's connection id."""
    with Idle(server, 1) as idle:
        idle.sql(f"CREATE TABLE {idle.database}.t1 (a INT PRIMARY KEY)")
        with (
            Crowd(server, 1, idle.database, ("FLUSH TABLES WITH READ LOCK",)) as holder,
            Crowd(server, WAITERS, idle.database) as writers,
        ):
            writers.send("INSERT INTO t1 VALUES (1)")
            until(lambda: len(idle.listed("STATE = 'Waiting for global read lock'")) == WAITERS)
            yield holder.ids[0]


def _first(server: Server, option_file: Path) -> dict[str, Any]:
    options = ("--seconds", SECONDS, "--defaults-file", option_file, "--json")
    done = innoscope("diagnose", "--pid", server.pid, *options)
    assert done.returncode == FOUND, done.stderr
    first: dict[str, Any] = json.loads(done.stdout)["findings"][0]
    return first


def test_holder_of_the_global_read_lock_is_named(server: Server, option_file: Path) -> None:
    with _global_read_lock(server) as holder:
        first = _first(server, option_file)
    assert first["name"] == "metadata_lock"
    [blocker] = first["blockers"]
    assert (blocker["connection"], blocker["waiting"]) == (holder, WAITERS)
    assert "holds SHARED on the global read lock, idle" in blocker["words"]


def test_holder_of_a_tables_metadata_lock_is_named(server: Server, option_file: Path) -> None:
    with MetadataLock(server, WAITERS) as load:
        first = _first(server, option_file)
        [holder] = load.listed("COMMAND = 'Sleep'")
    assert first["name"] == "metadata_lock"
    [blocker] = first["blockers"]
    assert (blocker["connection"], blocker["waiting"]) == (holder, WAITERS + 1)


def test_holder_of_a_row_is_named(server: Server, option_file: Path) -> None:
    with RowLock(server, WAITERS) as load:
        first = _first(server, option_file)
        [holder] = load.listed("COMMAND = 'Sleep'")
    assert first["name"] == "row_lock_convoy"
    assert first["blockers"][0]["connection"] == holder


def test_setting_that_records_metadata_locks_is_named(option_file: Path) -> None:
    with Server("mysql-5.7.22") as server:
        server.sql(*statements(PASSWORD))
        with _global_read_lock(server):
            first = _first(server, option_file)
    [blocker] = first["blockers"]
    assert blocker["words"].startswith("unknown: ")
    assert RECORD_METADATA_LOCKS in blocker["words"]
