"""Names of servers: stable, never shared, and nobody's who only repeats another one's options."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from innoscope.sensor.naming import Names
from innoscope.target import endpoints
from innoscope.target.home import Home
from innoscope.target.proc import ProcFs
from unit.dumps import target

if TYPE_CHECKING:
    from pathlib import Path

    from innoscope.target.model import Target

HOME, OTHER = Home(1, 100, 27), Home(1, 200, 27)


@pytest.fixture
def proc(tmp_path: Path) -> ProcFs:
    for pid in (1, 2, 3, 4):
        option = {3: b"--port=3399\0", 4: b"--port=\xff\x1b[2J\0"}.get(pid, b"")
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "cmdline").write_bytes(b"mysqld\0" + option)
    return ProcFs(tmp_path)


def silent(pid: int, **changes: object) -> Target:
    """A server that does not listen yet."""
    return target(pid=pid, port=None, socket=None, **changes)


def test_the_port_is_the_name(proc: ProcFs) -> None:
    assert Names({}, proc).give(target(pid=1), ()) == "3306"


def test_a_configured_name_wins(proc: ProcFs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoints, "listens", lambda _proc, one: one.socket == "/run/b.sock")
    names = Names({"1": "shop", "/run/b.sock": "audit"}, proc)

    assert names.give(target(pid=1), ()) == "shop"
    assert names.give(target(pid=2, socket="/run/b.sock", datadir="/b"), {"shop"}) == "audit"


def test_two_living_servers_never_share_a_name(proc: ProcFs) -> None:
    """Two containers may both listen on 3306, each in its own network."""
    names = Names({}, proc)
    first = names.give(target(pid=1, container="a"), ())
    second = names.give(target(pid=2, container="b", socket="/b.sock"), {first})
    third = names.give(target(pid=1, container="c", socket="/b.sock", datadir="/b.sock"), {first, second})

    assert (first, second, third) == ("3306", "/b.sock", "pid 1")


def test_the_successor_on_a_data_directory_takes_the_name(proc: ProcFs) -> None:
    names = Names({"1": "shop"}, proc)
    assert names.give(target(pid=1), (), HOME) == "shop"

    assert names.give(silent(2), (), HOME) == "shop", "it does not listen yet"
    assert names.give(target(pid=2), (), OTHER) == "3306", "another file system's /var/lib/mysql"


def test_repeated_options_inherit_nothing(proc: ProcFs) -> None:
    names = Names({}, proc)
    assert names.give(target(pid=1, port=3399), (), HOME) == "3399"

    assert names.give(silent(3), (), OTHER) == "/var/lib/mysql", "its --port is the name of another server"
    assert names.give(silent(3), ()) == "/var/lib/mysql"
    assert names.give(silent(2), (), HOME) == "3399"
    assert names.give(target(pid=3, port=3399), (), OTHER) == "3399", "it really listens there"


def test_a_configured_socket_s_option_inherits_nothing(proc: ProcFs) -> None:
    names = Names({"/run/a.sock": "shop"}, proc)
    assert names.give(target(pid=1, port=None, socket="/run/a.sock"), (), HOME) == "shop"

    assert names.give(target(pid=2, port=None, socket="/run/a.sock"), (), OTHER) == "/run/a.sock"
    assert names.give(target(pid=2, port=None, socket="/run/a.sock"), (), HOME) == "shop"


def test_a_server_that_does_not_listen_yet_is_named_by_the_port_it_will_have(proc: ProcFs) -> None:
    assert Names({}, proc).give(silent(3), ()) == "3399"


def test_a_port_that_is_no_number_names_nobody(proc: ProcFs) -> None:
    assert Names({}, proc).give(silent(4), ()) == "/var/lib/mysql"
    for text in ("0", "65536", "٣٣٠٦", "3306 ", "-1", "9" * 5000, ""):
        assert endpoints.option_port(["mysqld", f"--port={text}"]) is None
    assert endpoints.option_port(["mysqld", "-P", "65535"]) == 65535


def test_names_are_printable(proc: ProcFs) -> None:
    assert Names({}, proc).give(silent(1, datadir="/a\udcff\x1b[2J"), ()) == r"/a\xff\x1b[2J"


def test_a_makeshift_name_is_given_up_for_the_port(proc: ProcFs) -> None:
    names = Names({}, proc)
    assert names.give(silent(1), (), HOME) == "/var/lib/mysql"
    assert names.give(target(pid=1, port=None), (), HOME) == "/tmp/mysql.sock"  # noqa: S108
    assert names.give(target(pid=1), (), HOME) == "3306"
    assert names.give(silent(2), (), HOME) == "3306"
