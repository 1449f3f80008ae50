"""A socket named by ``innoscope sensor --only`` selects the process that it reaches."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from innoscope.daemon.sensor.identification import Identified
from innoscope.daemon.sensor.selected_servers import SelectedServers
from innoscope.target.proc import ProcFs
from unit.snapshots import target
from unit.test_configured_servers import NO_PID, running
from unit.test_sensor_names import HOME, OTHER, listener

if TYPE_CHECKING:
    from pathlib import Path

    from innoscope.target.data_directory import DataDirectory
    from innoscope.target.model import Target

_CONTAINER = "ab" * 6


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "s.sock")


def identified(one: Target, home: DataDirectory | None = None) -> Identified:
    return Identified(one, home, None, None, listens=True)


class Selection:
    """The selection of servers as in the sensor, with a simulated clock that advances at each call."""

    def __init__(self, *places: str) -> None:
        self.now = 0.0
        self.servers = SelectedServers(places, ProcFs(), lambda: self.now)

    def selects(self, one: Target, home: DataDirectory | None = None) -> bool:
        self.now += 1000
        self.servers.try_sockets(one)
        return self.servers.selects(identified(one, home))


@pytest.mark.parametrize("stranger_first", [True, False])
@pytest.mark.parametrize("container", [None, _CONTAINER, "mnt,net"])
def test_a_process_with_the_same_path_is_not_selected(
    path: str, container: str | None, *, stranger_first: bool
) -> None:
    ours = running(os.getpid(), socket=path)
    stranger = running(os.getppid(), socket=path, container=container)
    selection = Selection(path)
    with listener(path):
        both = (stranger, ours) if stranger_first else (ours, stranger)
        selected = {one.pid for one in both if selection.selects(one)}

    assert selected == {os.getpid()}
    assert not selection.selects(stranger)
    assert selection.servers.excluded() == {os.getppid()}
    selection.now += 61
    assert not selection.servers.excluded(), "it is identified again, because the server may exit"


def test_a_container_is_not_selected_while_nobody_listens(path: str) -> None:
    assert not Selection(path).selects(running(os.getppid(), socket=path, container=_CONTAINER))


def test_the_server_that_listens_displaces_one_that_only_has_the_option(path: str) -> None:
    selection = Selection(path)
    stranger, ours = running(os.getppid(), socket=path), running(os.getpid(), socket=path)
    assert selection.selects(stranger, OTHER)
    assert not selection.servers.is_final(stranger)
    assert not selection.selects(ours, HOME), "it does not listen yet"
    assert selection.servers.displaced(identified(stranger, OTHER), [stranger, ours]) == []
    with listener(path):
        assert selection.selects(ours, HOME)
        assert selection.servers.displaced(identified(ours, HOME), [stranger, ours]) == [os.getppid()]
        assert selection.servers.is_final(ours)
        assert not selection.selects(stranger, OTHER)


def test_a_pid_selects_a_process_whose_socket_reaches_another_one(path: str) -> None:
    stranger, ours = running(os.getppid(), socket=path), running(os.getpid(), socket=path)
    selection = Selection(path, str(os.getppid()))
    with listener(path):
        assert selection.selects(stranger)
        assert selection.selects(ours)
        assert selection.servers.displaced(identified(ours), [stranger, ours]) == []
        assert selection.servers.displaced(identified(stranger), [stranger, ours]) == []


def test_a_server_with_another_socket_is_excluded_until_it_exits(path: str) -> None:
    selection = Selection(path)
    assert not selection.selects(target(pid=NO_PID, socket="/other.sock"))
    selection.now += 1e9
    assert selection.servers.excluded() == {NO_PID}
    selection.servers.forget_others([])
    assert not selection.servers.excluded()


def test_a_server_that_does_not_listen_yet_is_not_excluded(path: str) -> None:
    selection = Selection(path)
    assert not selection.selects(target(pid=NO_PID, socket=None))
    starting = Identified(target(pid=NO_PID, socket=path), None, None, None, listens=False)
    assert not selection.servers.selects(starting)
    assert not selection.servers.excluded()


def test_all_servers_are_selected_if_none_is_named() -> None:
    selection = Selection()
    assert selection.selects(target(pid=NO_PID, socket="/other.sock"))
    assert selection.servers.is_final(target(pid=NO_PID))
