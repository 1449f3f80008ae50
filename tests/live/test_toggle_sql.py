"""Set, read back and restore toggles over SQL on each server; test clamping, privileges and full servers."""

from __future__ import annotations

import os
import signal
import time
from contextlib import ExitStack, closing
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from innoscope.target.credentials import LoginOptions
from innoscope.target.discover import find_one
from innoscope.toggles import catalog
from innoscope.toggles.backends.sql import LockedOut, NoLogin, SqlWriter
from innoscope.toggles.model import (
    Assignment,
    Backend,
    ChangeFailed,
    ChangeRefused,
    ChangeStep,
    NotOnThisServer,
    ToggledVariable,
    Writer,
    same,
)
from live.changing import ROOT, fill, other_value, shown
from scale import few, long
from servers import ADDED, NAMES, Server, free_port

if TYPE_CHECKING:
    from collections.abc import Iterator

    from innoscope.toggles.model import Raw, Toggle

#: Toggles that MySQL 8.0 and newer set over SQL. Other toggles use memory, or are not supported.
ALL = {
    "read_ahead", "read_ahead_linear", "read_ahead_random", "deadlock_detection", "spin_rounds", "spin_delay",
    "thread_concurrency", "adaptive_hash_index", "adaptive_flushing", "dirty_page_limit", "io_capacity",
    "flush_neighbors", "flush_sync", "change_buffering", "redo_size", "relaxed_durability", "purge_lag",
    "purge_lag_delay", "max_connections", "monitor_output",
}  # fmt: skip
NEW = {"deadlock_detection", "flush_sync", "redo_size"}
MARIADB = {"thread_concurrency"}
EXPECTED = {
    "mysql-5.7.22": ALL - {"redo_size"},
    "mysql-8.0.31": ALL,
    "mariadb-10.5": ALL - MARIADB - {"redo_size"},
    "mysql-5.5.9": ALL - NEW - {
        "read_ahead", "read_ahead_linear", "read_ahead_random", "flush_neighbors", "purge_lag_delay",
        "monitor_output",
    },
    "mysql-5.6.24": ALL - NEW,
    "mysql-9.7": ALL,
    "mariadb-10.11": ALL - MARIADB,
    "mariadb-11.4.5": ALL - MARIADB - {"change_buffering"} | {"doublewrite"},
}  # fmt: skip


@pytest.fixture(
    scope="module",
    params=few((*NAMES, *ADDED), *NAMES, reason="the other versions behave in the same way"),
)
def live_server(request: pytest.FixtureRequest) -> Iterator[Server]:
    """Yield a server that the tests may change. Only one such server runs at a time."""
    with Server(request.param) as server:
        yield server


def sql_backend(toggle: Toggle, server: Server) -> Backend | None:
    target = find_one(server.pid)
    try:
        backends = catalog.generation(toggle, target.flavour, target.version).backends
    except NotOnThisServer:
        return None
    return next((backend for backend in backends if backend.kind == "sql"), None)


def test_every_toggle_is_set_and_restored(live_server: Server) -> None:
    done = set()
    for toggle in catalog.load().values():
        backend = sql_backend(toggle, live_server)
        if backend is not None:
            flip(live_server, toggle, backend)
            done.add(toggle.name)

    assert done == EXPECTED[live_server.name]


def flip(server: Server, toggle: Toggle, backend: Backend) -> None:
    names = [one.setting.name for one in backend.assignments]
    before = shown(server, names)
    with SqlWriter(find_one(server.pid), ROOT) as writer:
        now = catalog.spoken(backend, toggle, before)
        value = other_value(toggle, now)
        steps = writer.prepare(backend, catalog.raws(backend, toggle, value))
        assert [step.old for step in steps] == before
        assert shown(server, names) == before, "prepare must not write"
        for step in steps:
            writer.write(step)
        meanwhile = shown(server, names)
        read_back = catalog.spoken(backend, toggle, meanwhile)
        for step in reversed(steps):
            writer.write(replace(step, old=step.new, new=step.old))
        after = shown(server, names)

    assert read_back == value
    assert all(same(raw, step.new) for raw, step in zip(meanwhile, steps, strict=True))
    assert after == before


def test_blocking_maximum_is_raised_and_restored(live_server: Server) -> None:
    """Set io_capacity above its maximum; check that this raises the maximum only as far as needed."""
    toggle = catalog.load()["io_capacity"]
    backend = sql_backend(toggle, live_server)
    assert backend is not None
    names = [one.setting.name for one in backend.assignments]
    assert (len(names) == 1) is (live_server.name == "mysql-5.5.9"), "only 5.5.9 has no maximum"
    before = shown(live_server, names)
    for wanted in (before[-1] + 1, before[0] + 7):
        with SqlWriter(find_one(live_server.pid), ROOT) as writer:
            steps = writer.prepare(backend, catalog.raws(backend, toggle, str(wanted)))
            for one in steps:
                writer.write(one)
            assert shown(live_server, names) == [max(before[0], wanted), wanted][-len(names) :]
            assert writer.warnings == []
            for one in reversed(steps):
                writer.write(replace(one, new=one.old))
    assert shown(live_server, names) == before


def step(writer: SqlWriter, name: str, new: Raw) -> ChangeStep:
    return writer.prepare(Backend("sql", (Assignment(ToggledVariable(name)),)), (new,))[0]


def test_clamped_value_is_detected(live_server: Server) -> None:
    """Check that a clamped value is detected, although servers report it with a warning at most."""
    with SqlWriter(find_one(live_server.pid), ROOT) as writer:
        assert isinstance(writer, Writer)
        clamped = step(writer, "innodb_read_ahead_threshold", 1000)
        with pytest.raises(ChangeFailed, match="set innodb_read_ahead_threshold to 64 instead of 1000"):
            writer.write(clamped)
        writer.write(replace(clamped, new=clamped.old))
        assert writer.read(clamped) == clamped.old


@pytest.mark.parametrize(
    ("name", "new", "error"),
    [
        ("innodb_page_size_of_ours", 1, "this server has no innodb_page_size_of_ours"),
        ("innodb_log_group_home_dir", "x", "cannot be changed while the server is running"),
        ("innodb_io_capacity", "much", "refuses to change innodb_io_capacity"),
        ("innodb_io_capacity", "1; DROP", "invalid value"),
        ("innodb_io_capacity, 1", 1, "invalid name"),
    ],
)
def test_refusal_has_a_reason(live_server: Server, name: str, new: Raw, error: str) -> None:
    with SqlWriter(find_one(live_server.pid), ROOT) as writer, pytest.raises(ChangeRefused, match=error):
        writer.write(step(writer, name, new))


def test_missing_privilege_is_named_with_a_working_remedy(live_server: Server) -> None:
    with closing(live_server.connect()) as connection, connection.cursor() as cursor:
        cursor.execute("CREATE USER toggler@localhost")
        try:
            with SqlWriter(find_one(live_server.pid), LoginOptions(user="toggler")) as writer:
                change = step(writer, "max_connections", 2600)
                with pytest.raises(ChangeRefused, match="may not change max_connections") as caught:
                    writer.write(change)
            cursor.execute(caught.value.remedy)
            with SqlWriter(find_one(live_server.pid), LoginOptions(user="toggler")) as writer:
                writer.write(change)
                writer.write(replace(change, new=change.old))
        finally:
            cursor.execute("DROP USER toggler@localhost")


def test_denied_account_is_not_reported_as_locked_out(live_server: Server) -> None:
    with closing(live_server.connect()) as connection, connection.cursor() as cursor:
        cursor.execute("CREATE USER toggler@localhost IDENTIFIED BY 'not empty'")
        try:
            with SqlWriter(find_one(live_server.pid), LoginOptions(user="toggler")) as writer:
                with pytest.raises(NoLogin, match="access denied") as caught:
                    writer.prepare(Backend("sql", (Assignment(ToggledVariable("max_connections")),)), (None,))
                assert not isinstance(caught.value, LockedOut)
        finally:
            cursor.execute("DROP USER toggler@localhost")


def test_another_process_on_the_same_socket_is_refused(live_server: Server) -> None:
    """Use a socket that belongs to a process other than the target, as after a restart."""
    earlier = replace(find_one(live_server.pid), pid=os.getpid())
    with (
        SqlWriter(earlier, ROOT) as writer,
        pytest.raises(ChangeRefused, match=f"process {live_server.pid} answers"),
    ):
        step(writer, "max_connections", 2600)


@pytest.mark.parametrize(
    "name", ["mysql-5.5.9", "mysql-5.6.24", "mysql-9.7", "mariadb-10.11", "mariadb-11.4.5"]
)
def test_full_server_is_reported_as_locked_out(name: str) -> None:
    with Server(name, options={"max_connections": 10}) as server, ExitStack() as stack:
        target = find_one(server.pid)
        fill(stack, server)
        with SqlWriter(target, ROOT) as writer, pytest.raises(LockedOut, match="too many connections"):
            writer.prepare(Backend("sql", (Assignment(ToggledVariable("max_connections")),)), (None,))


@pytest.mark.parametrize(
    ("name", "options"),
    [("mysql-9.7", {"admin_address": "127.0.0.1"}), ("mariadb-11.4.5", {"extra_max_connections": 2})],
)
def test_extra_port_is_used_when_the_server_is_full(name: str, options: dict[str, Any]) -> None:
    port = "admin_port" if "admin_address" in options else "extra_port"
    settings = {"max_connections": 10, port: free_port(), **options}
    with Server(name, options=settings) as server, ExitStack() as stack:
        target = find_one(server.pid)
        fill(stack, server)
        with SqlWriter(target, ROOT) as writer:
            change = step(writer, "max_connections", 20)
            writer.write(change)
        with closing(server.connect()):  # connections are accepted again
            assert int(shown(server, ["max_connections"])[0]) == 20


@long("it waits for the client's timeouts")
def test_hung_server_causes_a_timeout() -> None:
    with Server("mysql-5.6.24") as server, SqlWriter(find_one(server.pid), ROOT) as writer:
        change = step(writer, "max_connections", 2600)
        os.kill(server.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, server.pid, os.WSTOPPED | os.WNOWAIT)  # waits until all threads are stopped
        try:
            began = time.monotonic()
            with pytest.raises(NoLogin, match="did not answer"):
                step(writer, "max_connections", 2600)
            assert time.monotonic() - began < 8
        finally:
            os.kill(server.pid, signal.SIGCONT)
        assert writer.read(change) == 2500


def test_server_that_ended_is_reported_as_gone() -> None:
    with Server("mysql-5.6.24") as server, SqlWriter(find_one(server.pid), ROOT) as writer:
        change = step(writer, "max_connections", 2600)
        server.kill()
        with pytest.raises(ChangeFailed, match="gone"):
            writer.write(change)
        with pytest.raises(NoLogin):
            step(writer, "max_connections", 2600)
