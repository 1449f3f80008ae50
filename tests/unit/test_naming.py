"""Server names are stable and unique.

A process with the options of another server does not get that server's name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from innoscope.daemon.protocol.server_names import ServerNames
from innoscope.target import choice, endpoints
from innoscope.target.data_directory import DataDirectory
from innoscope.target.proc import ProcFs
from unit.snapshots import target

if TYPE_CHECKING:
    from pathlib import Path

    from innoscope.target.model import Target

HOME, OTHER = DataDirectory(1, 100, 27), DataDirectory(1, 200, 27)


@pytest.fixture
def proc(tmp_path: Path) -> ProcFs:
    return ProcFs(tmp_path)


def silent(pid: int, **changes: object) -> Target:
    """Return a server that does not listen on a port yet."""
    return target(pid=pid, port=None, socket=None, **changes)


def test_the_port_is_the_name(proc: ProcFs) -> None:
    assert ServerNames({}, proc).give(target(pid=1), ()) == "3306"


def test_a_configured_name_overrides_the_port(proc: ProcFs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "reaches", lambda *_: True)
    names = ServerNames({"1": "shop", "/run/b.sock": "audit"}, proc)
    other = target(pid=2, socket="/run/b.sock", datadir="/b")
    names.try_sockets(other)

    assert names.give(target(pid=1), ()) == "shop"
    assert names.give(other, {"shop"}) == "audit"


def test_two_running_servers_never_share_a_name(proc: ProcFs) -> None:
    """Name servers that all listen on port 3306, each in the network namespace of its own container."""
    names = ServerNames({}, proc)
    first = names.give(target(pid=1, container="a"), ())
    second = names.give(target(pid=2, container="b", socket="/b.sock"), {first})
    third = names.give(target(pid=1, container="c", socket="/b.sock", datadir="/b.sock"), {first, second})

    assert (first, second, third) == ("3306", "3306 in b", "3306 in c")


def pods(proc: ProcFs, count: int, **changes: object) -> tuple[ServerNames, dict[str, DataDirectory]]:
    """Name the servers of ``count`` containers. Return the names, and the data directory of each name."""
    names, given = ServerNames({}, proc), dict[str, DataDirectory]()
    for number in range(count):
        home, pid = DataDirectory(number, 2, 999), 1000 + number
        container = f"{number:012x}"
        given[names.give(target(pid=pid, container=container, **changes), given.keys(), home)] = home
    return names, given


@pytest.mark.parametrize("port", [3306, None])
def test_a_server_in_a_container_keeps_its_name_across_restarts(proc: ProcFs, port: int | None) -> None:
    names, given = pods(proc, 8, port=port)
    assert len(given) == 8
    assert not [name for name in given if name.startswith("pid ")]
    for restart in range(5):
        alive = set(given)
        for name, home in given.items():
            alive.discard(name)
            again = target(pid=5000 + restart, container=f"{restart:06x}{home.device:06x}", port=port)
            assert names.give(again, alive, home) == name
            alive.add(name)


def test_names_survive_a_restart_of_all_servers_in_another_order(proc: ProcFs) -> None:
    names, given = pods(proc, 5, port=None)
    alive = set[str]()
    for name, home in reversed(given.items()):
        assert names.give(silent(9000, container=f"{home.device:012x}"), alive, home) == name
        alive.add(name)


def test_servers_in_one_container_have_different_names(proc: ProcFs) -> None:
    names, taken = ServerNames({}, proc), set[str]()
    for number in range(5):
        name = names.give(target(pid=1000 + number, container="abc"), taken, DataDirectory(number, 2, 999))
        again = names.give(target(pid=2000 + number, container="abc"), taken, DataDirectory(number, 2, 999))
        assert name == again
        assert not name.startswith("pid ")
        taken.add(name)
    assert len(taken) == 5


def test_a_list_of_namespaces_is_not_a_container_id(proc: ProcFs) -> None:
    names = ServerNames({}, proc)
    assert names.give(target(pid=7, container="mnt,pid"), {"3306"}) == "pid 7"
    name = names.give(target(pid=7, container="mnt,pid"), {"3306"}, HOME)
    assert name == names.give(target(pid=8, container="mnt,pid"), {"3306"}, HOME)
    assert name.startswith("3306 in ")


def test_the_number_of_remembered_names_is_bounded(proc: ProcFs) -> None:
    names = ServerNames({}, proc)
    for number in range(1500):
        for port in (None, 3306):
            one = target(pid=1, port=port, container=f"{number:012x}")
            names.give(one, {"3306"}, DataDirectory(1, number, 27))
    assert len(names._owners) <= 1024
    assert len(names._provisional) <= 1024


def test_the_next_server_on_a_data_directory_inherits_the_name(proc: ProcFs) -> None:
    names = ServerNames({"1": "shop"}, proc)
    assert names.give(target(pid=1), (), HOME) == "shop"

    assert names.give(silent(2), (), HOME) == "shop", "it does not listen yet"
    assert names.give(target(pid=2), (), OTHER) == "3306", "/var/lib/mysql on another file system"


def test_a_server_with_the_same_port_option_does_not_inherit_the_name(proc: ProcFs) -> None:
    names = ServerNames({}, proc)
    assert names.give(target(pid=1, port=3399), (), HOME) == "3399"

    assert names.give(silent(3), (), OTHER, 3399) == "/var/lib/mysql", "its --port is another server's name"
    assert names.give(silent(3), (), None, 3399) == "/var/lib/mysql"
    assert names.give(silent(2), (), HOME) == "3399"
    assert names.give(target(pid=3, port=3399), (), OTHER) == "3399", "it listens on that port"


def test_a_server_with_the_same_socket_option_does_not_inherit_the_name(
    proc: ProcFs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choice, "reaches", lambda *_: None)
    names = ServerNames({"/run/a.sock": "shop"}, proc)
    first, second = (target(pid=pid, port=None, socket="/run/a.sock") for pid in (1, 2))
    for one in (first, second):
        names.try_sockets(one)
    assert names.give(first, (), HOME) == "shop"

    assert names.give(second, (), OTHER) == "/run/a.sock"
    assert names.give(second, (), HOME) == "shop"


def test_a_server_that_does_not_listen_yet_is_named_after_its_port_option(proc: ProcFs) -> None:
    assert ServerNames({}, proc).give(silent(3), (), None, 3399) == "3399"


def test_an_invalid_port_option_is_ignored() -> None:
    for text in ("0", "65536", "٣٣٠٦", "3306 ", "-1", "9" * 5000, "", "\udcff\x1b[2J"):
        assert endpoints.option_port(["mysqld", f"--port={text}"]) is None
    assert endpoints.option_port(["mysqld", "-P", "65535"]) == 65535


def test_names_are_printable(proc: ProcFs) -> None:
    assert ServerNames({}, proc).give(silent(1, datadir="/a\udcff\x1b[2J"), ()) == r"/a\xff\x1b[2J"


def test_a_provisional_name_is_replaced_by_the_port(proc: ProcFs) -> None:
    names = ServerNames({}, proc)
    assert names.give(silent(1), (), HOME) == "/var/lib/mysql"
    assert names.give(target(pid=1, port=None), (), HOME) == "/tmp/mysql.sock"  # noqa: S108
    assert names.give(target(pid=1), (), HOME) == "3306"
    assert names.give(silent(2), (), HOME) == "3306"
