"""Test that harmful changes to real servers are refused with a reason, and that nothing is written.

test_toggle_faults tests restarts, crash recovery and full disks; test_toggle_memory_refusals tests writes to
memory.
"""

from __future__ import annotations

import os
import signal
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from innoscope.common.errors import NoRights
from innoscope.target.discover import find_one
from innoscope.toggles import engine, lock
from innoscope.toggles.journal import Journal
from innoscope.toggles.journal_format import ServerId
from innoscope.toggles.model import ChangeRefused, NotOnThisServer
from innoscope.toggles.paths import boot_id
from safety.command import assert_one_clear_error, innoscope, run
from safety.debugging import Gdb, is_stopped
from safety.pid_namespace import run_in_pid_namespace
from safety.privileges import nobody
from safety.toggle_subject import ACCOUNT
from scale import few
from servers import NAMES, Server
from waiting import until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


OLD, NEW = "mysql-5.6.24", {"mariadb-10.11", "mariadb-11.4.5"}
BACKENDS = ("sql", "memory")


@pytest.fixture(
    scope="module",
    params=few(
        NAMES,
        "mysql-5.5.9",
        "mysql-5.6.24",
        "mysql-9.7",
        "mariadb-10.11",
        reason="gdb needs seconds in each test to read its symbols",
    ),
)
def each(request: pytest.FixtureRequest) -> Iterator[Server]:
    """Start each of the servers, one at a time."""
    with Server(request.param) as server:
        yield server


@pytest.fixture(scope="module")
def old() -> Iterator[Server]:
    with Server(OLD) as server:
        yield server


@pytest.fixture(autouse=True)
def journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Journal:
    """Return an empty journal for the test."""
    monkeypatch.setenv("INNOSCOPE_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("INNOSCOPE_RUN", str(tmp_path / "run"))
    return Journal()


def variables(server: Server) -> dict[str, str]:
    """Return the server's global variables."""
    with closing(server.connect()) as connection, connection.cursor() as cursor:
        cursor.execute("SHOW GLOBAL VARIABLES")
        return dict(cursor.fetchall())


def assert_refused(server: Server, code: int, reason: str, *change: str) -> None:
    """Check that the command line refuses a change, and that variables and journal are unchanged."""
    before = variables(server)
    result = innoscope("toggle", "set", *change, "--yes", "--pid", server.pid)
    assert_one_clear_error(result, code, reason)
    assert variables(server) == before
    assert Journal().entries() == ()


@pytest.mark.parametrize(
    ("toggle", "value", "reason"),
    [
        ("read_ahead", "off", "checkpoints"),
        ("doublewrite", "off", "write-fixed"),
        ("adaptive_hash_index", "off", "stale entries"),
        ("dirty_page_limit", "50", "double"),
        ("io_capacity", "2000", "division"),
    ],
)
def test_unsafe_memory_writes_are_refused(each: Server, toggle: str, value: str, reason: str) -> None:
    if toggle == "read_ahead" and each.name not in NEW:
        reason = "read_ahead"  # 5.5.9 sets it through memory, MySQL since 8.0 through SQL
        if each.name == "mysql-5.5.9":
            assert innoscope("toggle", "plan", toggle, value, "--pid", each.pid).returncode == 0
            return
    code = NotOnThisServer.exit_code
    assert_refused(each, code, reason, toggle, value, "--backend", "memory")


@pytest.mark.parametrize(
    ("toggle", "value", "reason"),
    [
        ("spin_rounds", "100001", "it takes 0 to 100000 rounds"),
        ("spin_rounds", "18446744073709551617", "it takes 0 to 100000 rounds"),
        ("spin_rounds", "0.5", "it takes"),
        ("spin_rounds", "many", "it takes"),
        ("adaptive_flushing", "2", "it takes on, off"),
        ("max_connections", "0", "it takes"),
        ("spn_rounds", "7", "unknown toggle"),
    ],
)
def test_values_out_of_range_are_refused(old: Server, toggle: str, value: str, reason: str) -> None:
    assert_refused(old, ChangeRefused.exit_code, reason, toggle, value)


def test_toggles_that_need_a_call_inside_the_server_are_refused(each: Server) -> None:
    assert_refused(each, NotOnThisServer.exit_code, "a call inside a live server", "release_memory")


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("other", "reason"), [({"build_id": "00" * 20}, "build-id"), ({"start_time": 1}, "another process now")]
)
def test_a_change_that_was_planned_for_another_process_is_refused(
    old: Server, journal: Journal, backend: str, other: dict[str, Any], reason: str
) -> None:
    target, before = find_one(old.pid), variables(old)
    plan = engine.plan(target, "max_connections", "2600", account=ACCOUNT, backends=[backend])
    wrong = replace(target, **other)
    for attempt in (
        lambda: engine.plan(wrong, "max_connections", "2600", account=ACCOUNT, backends=[backend]),
        lambda: engine.apply(wrong, plan, who="test", account=ACCOUNT),
    ):
        with pytest.raises(ChangeRefused, match=reason) as refused:
            attempt()
        assert refused.value.remedy

    assert variables(old) == before
    assert journal.entries() == ()


def test_a_reused_pid_is_neither_changed_nor_undone(tmp_path: Path) -> None:
    results = run_in_pid_namespace("safety.toggle_reused_pid_main", tmp_path)

    assert results["pids"][0] == results["pids"][1]
    assert "is another process now" in results["apply"]
    assert "has exited" in results["undo"]
    assert results["entries"] == 1, "only the entry of the first process"


def stopped(server: Server) -> Callable[[], object]:
    """Stop the server and return a function that resumes it."""
    server.process.send_signal(signal.SIGSTOP)
    until(lambda: is_stopped(server.pid))
    return lambda: server.process.send_signal(signal.SIGCONT)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_stopped_server_is_refused_with_the_unstick_command(
    old: Server, journal: Journal, backend: str
) -> None:
    resume = stopped(old)
    try:
        result = innoscope(
            "toggle", "set", "max_connections", "2600", "--backend", backend, "--yes", "--pid", old.pid
        )
    finally:
        resume()

    assert_one_clear_error(result, ChangeRefused.exit_code, "stopped")
    assert f"innoscope unstick --pid {old.pid}" in result.stderr
    assert variables(old)["max_connections"] == "2500"
    assert journal.entries() == ()


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_traced_server_is_refused(old: Server, backend: str) -> None:
    with Gdb(old.pid) as gdb:
        gdb.until_prompt().type("continue")
        until(lambda: not is_stopped(old.pid))

        assert_refused(old, ChangeRefused.exit_code, f"process {gdb.pid} (gdb) traces the server",
                       "max_connections", "2600", "--backend", backend)  # fmt: skip
        gdb.kill()


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_concurrent_change_is_refused(old: Server, backend: str) -> None:
    with lock.held(Journal().folder, ServerId.of(find_one(old.pid), boot_id())):
        assert_refused(old, ChangeRefused.exit_code, f"process {os.getpid()} is changing server {old.pid}",
                       "max_connections", "2600", "--backend", backend)  # fmt: skip


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_unprivileged_user_is_refused(old: Server, journal: Journal, backend: str) -> None:
    before = variables(old)
    result = run(
        nobody("toggle", "set", "max_connections", "2600", "--backend", backend, "--yes", "--pid", old.pid)
    )

    assert result.returncode in (ChangeRefused.exit_code, NoRights.exit_code), result.stderr
    assert_one_clear_error(result, result.returncode)
    assert variables(old) == before
    assert journal.entries() == ()
