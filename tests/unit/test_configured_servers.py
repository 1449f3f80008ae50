"""A ``[[server]]`` entry of the agent belongs to the process that its socket or port reaches."""

from __future__ import annotations

import os
import socket
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from innoscope.daemon.agent import config
from innoscope.daemon.agent.config import Server as Named
from innoscope.daemon.agent.servers import Servers
from innoscope.target import choice
from innoscope.target.proc import ProcFs
from unit.snapshots import target

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from innoscope.target.model import Target

#: A pid above the kernel's maximum (4 Mi).
NO_PID = 1 << 23


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "s.sock")


@pytest.fixture
def listening(path: str) -> Iterator[socket.socket]:
    """Listen on ``path`` in this process. The backlog is long enough for all connections of a test."""
    with closing(socket.socket(socket.AF_UNIX)) as listener:
        listener.bind(path)
        listener.listen(64)
        yield listener


def running(pid: int, **changes: object) -> Target:
    """Return a target that describes a running process."""
    return target(pid=pid, start_time=ProcFs().stat(pid).start_time, **changes)


def agent(*entries: Named, only_named: bool = False) -> Servers:
    return Servers(config.Config(sql=config.Sql(enabled=False), server=entries, only_named=only_named))


def registered(servers: Servers) -> dict[str, int | None]:
    """Return the pid of each registered server."""
    return {one.name: one.target.pid if one.target else None for one in servers}


@pytest.mark.parametrize("stranger_first", [True, False])
@pytest.mark.parametrize("container", [None, "ab" * 6, "mnt,net"])
def test_a_process_with_the_same_socket_option_does_not_take_the_name(
    path: str, listening: socket.socket, container: str | None, *, stranger_first: bool
) -> None:
    ours = running(os.getpid(), socket=path)
    stranger = running(os.getppid(), socket=path, container=container)
    servers = agent(Named("shop", socket=path))
    both = [("3306", ours), ("3306 in b", stranger)]
    for name, one in both[::-1] if stranger_first else both:
        assert servers.register_from_sensor(name, one) is not None

    assert registered(servers) == {"shop": os.getpid(), "3306 in b": os.getppid()}


def test_only_named_excludes_a_process_with_the_same_socket_option(
    path: str, listening: socket.socket
) -> None:
    servers = agent(Named("shop", socket=path), only_named=True)
    assert servers.register_from_sensor("3306", running(os.getppid(), socket=path)) is None
    assert servers.register_from_sensor("3307", running(os.getpid(), socket=path)) is not None


@pytest.mark.parametrize("host", [None, "127.0.0.1"])
def test_a_port_in_another_network_is_not_the_configured_one(
    monkeypatch: pytest.MonkeyPatch, host: str | None
) -> None:
    networks: dict[int | str, int] = {"self": 1, os.getpid(): 1, os.getppid(): 2}
    monkeypatch.setattr(ProcFs, "network", lambda _, pid: networks[pid])
    servers = agent(Named("shop", host=host, port=3306))
    servers.register_from_sensor("3306", running(os.getppid()))
    assert registered(servers) == {"3306": os.getppid(), "shop": None}
    servers.register_from_sensor("3306 in a", running(os.getpid()))
    assert registered(servers) == {"3306": os.getppid(), "shop": os.getpid()}


def test_two_listeners_on_one_port_do_not_replace_each_other() -> None:
    """Let two servers listen on port 3306, which is possible on different addresses of the host."""
    servers = agent(Named("shop", port=3306))
    for _ in range(2):
        servers.register_from_sensor("3306", running(os.getpid()))
        servers.register_from_sensor("3306 in b", running(os.getppid()))
    assert registered(servers) == {"shop": os.getpid(), "3306 in b": os.getppid()}


def test_a_restarted_server_keeps_its_configured_name_before_it_listens(
    monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    """Recognize the server by its name in the sensor, 3306: the sensor binds names to data directories.

    Another process with the same socket option does not get the configured name.
    """
    servers = agent(Named("shop", socket=path))
    ended = target(pid=NO_PID, socket=path)
    with monkeypatch.context() as patch:
        patch.setattr(choice, "reaches", lambda *_: True)
        servers.register_from_sensor("3306", ended)
    assert registered(servers) == {"shop": NO_PID}

    stranger, again = (running(pid, socket=path, port=None) for pid in (os.getppid(), os.getpid()))
    servers.register_from_sensor("/other", stranger)
    assert registered(servers) == {"shop": NO_PID, "/other": os.getppid()}
    servers.register_from_sensor("3306", again)
    assert registered(servers) == {"shop": os.getpid(), "/other": os.getppid()}


def test_a_server_that_listens_replaces_one_that_only_has_the_option(path: str) -> None:
    servers = agent(Named("shop", socket=path))
    servers.register_from_sensor("3306", running(os.getppid(), socket=path))
    assert registered(servers) == {"shop": os.getppid()}
    with closing(socket.socket(socket.AF_UNIX)) as listener:
        listener.bind(path)
        listener.listen()
        servers.register_from_sensor("3307", running(os.getpid(), socket=path))
        servers.register_from_sensor("3306", running(os.getppid(), socket=path))
    assert registered(servers) == {"shop": os.getpid(), "3306": os.getppid()}


def test_the_name_of_an_entry_is_reserved() -> None:
    servers = agent(Named("3306", socket="/run/mysqld/a.sock"), Named("db1", host="db1.example.net", port=1))
    servers.register_from_sensor("3306", running(os.getpid(), socket="/b.sock"))
    assert registered(servers) == {"db1": None, "3306": None, "3306 (not configured)": os.getpid()}


def test_an_address_is_tried_less_and_less_often(monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    """Check that attempts become rarer, because a server counts each one as an aborted connection."""
    tried, now = [], 0.0
    monkeypatch.setattr(choice, "reaches", lambda *_: tried.append(now))
    servers = Servers(
        config.Config(sql=config.Sql(enabled=False), server=(Named("shop", socket=path),)), lambda: now
    )
    one = running(os.getpid(), socket=path)
    for second in range(3600):
        now = float(second)
        servers.own_name("3306", one)
    assert len(tried) < 16
