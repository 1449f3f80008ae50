"""The name that the sensor's configuration assigns to a socket belongs to the process that listens on it."""

from __future__ import annotations

import os
import socket
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from innoscope.daemon.protocol.server_names import ServerNames
from innoscope.target import choice
from innoscope.target.data_directory import DataDirectory
from innoscope.target.proc import ProcFs
from unit.snapshots import target
from unit.test_configured_servers import NO_PID, running

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator
    from pathlib import Path

    from innoscope.target.model import Target

HOME, OTHER = DataDirectory(1, 100, 27), DataDirectory(1, 200, 27)


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "s.sock")


@pytest.fixture
def listening(path: str) -> Iterator[None]:
    with listener(path):
        yield


def listener(path: str) -> closing[socket.socket]:
    """Listen on ``path`` in this process."""
    made = socket.socket(socket.AF_UNIX)
    made.bind(path)
    made.listen(64)
    return closing(made)


class Naming:
    """The naming of servers as in the sensor, with a simulated clock that advances at each call."""

    def __init__(self, configured: dict[str, str]) -> None:
        self.now = 0.0
        self.names = ServerNames(configured, ProcFs(), lambda: self.now)

    def give(self, one: Target, taken: Collection[str] = (), home: DataDirectory | None = None) -> str:
        self.now += 1000
        self.names.try_sockets(one)
        return self.names.give(one, taken, home)


@pytest.mark.usefixtures("listening")
@pytest.mark.parametrize("stranger_first", [True, False])
@pytest.mark.parametrize("container", [None, "ab" * 6, "mnt,net"])
def test_a_process_with_the_same_socket_does_not_take_the_name(
    path: str, container: str | None, *, stranger_first: bool
) -> None:
    ours = running(os.getpid(), socket=path, port=3307)
    stranger = running(os.getppid(), socket=path, container=container)
    naming, given = Naming({path: "shop"}), dict[str, int]()
    for one in (stranger, ours) if stranger_first else (ours, stranger):
        given[naming.give(one, given)] = one.pid

    assert given == {"shop": os.getpid(), "3306": os.getppid()}


def test_a_container_does_not_take_the_name_while_nobody_listens(path: str) -> None:
    naming = Naming({path: "shop"})
    stranger = running(os.getppid(), socket=path, container="ab" * 6)
    assert naming.give(stranger) == "3306"
    assert not naming.names.is_final(stranger), "the address reached no server yet"


def test_a_server_that_listens_takes_the_name_from_one_that_only_has_the_option(path: str) -> None:
    naming = Naming({path: "shop"})
    stranger, ours = running(os.getppid(), socket=path), running(os.getpid(), socket=path, port=3307)
    assert naming.give(stranger, (), OTHER) == "shop"
    assert not naming.names.is_final(stranger)
    assert naming.give(ours, {"shop"}, HOME) == "3307", "it does not listen yet"
    assert not naming.names.is_final(ours)
    with listener(path):
        assert naming.give(ours, {"shop"}, HOME) == "shop"
        assert naming.names.is_final(ours)
    assert naming.give(stranger, {"shop"}, OTHER) == "3306"
    assert naming.names.is_final(stranger)
    assert naming.give(stranger, (), OTHER) == "3306", "the name stays reserved"


def test_a_restarted_server_keeps_the_name_before_it_listens(
    monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    naming = Naming({path: "shop"})
    with monkeypatch.context() as patch:
        patch.setattr(choice, "reaches", lambda *_: True)
        assert naming.give(target(pid=NO_PID, socket=path), (), HOME) == "shop"
        patch.setattr(choice, "reaches", lambda *_: None)
        stranger, again = (running(pid, socket=path, port=None) for pid in (os.getppid(), os.getpid()))
        assert naming.give(stranger, (), OTHER) == path
        assert naming.give(stranger, (), None) == path
        assert naming.give(again, (), HOME) == "shop"


@pytest.mark.usefixtures("listening")
def test_another_servers_port_or_data_directory_does_not_lead_to_a_configured_name(path: str) -> None:
    naming = Naming({path: "3306"})
    stranger = running(os.getppid(), socket="/other.sock")
    assert naming.give(stranger, (), OTHER).startswith("3306 in ")
    assert naming.give(running(os.getpid(), socket=path, port=3307), (), HOME) == "3306"
    assert naming.names.is_final(stranger)


def test_a_socket_that_was_not_tried_gives_no_name(path: str) -> None:
    assert ServerNames({path: "shop"}, ProcFs()).give(running(os.getpid(), socket=path), ()) == "3306"


@pytest.mark.usefixtures("listening")
def test_only_the_process_that_the_socket_reaches_is_configured(path: str) -> None:
    naming = Naming({path: "prod", "77": "other"})
    reached, liar = running(os.getpid(), socket=path), running(os.getppid(), socket=path)
    for one in (liar, reached):
        naming.names.try_sockets(one)
    assert naming.names.configured == 2
    assert not naming.names.is_configured(liar, OTHER)
    assert naming.names.is_configured(reached, HOME)
    assert naming.names.is_configured(target(pid=77, socket=None), OTHER)
