"""Names of servers: stable, and never shared."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from innoscope.sensor.naming import Names
from innoscope.target.proc import ProcFs
from unit.dumps import target

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def proc(tmp_path: Path) -> ProcFs:
    for pid in (1, 2, 3):
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "cmdline").write_bytes(b"mysqld\0" + (b"--port=3399\0" if pid == 3 else b""))
    return ProcFs(tmp_path)


def test_the_port_is_the_name(proc: ProcFs) -> None:
    assert Names({}, proc).give(target(pid=1), ()) == "3306"


def test_a_configured_name_wins(proc: ProcFs) -> None:
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


def test_the_successor_on_a_data_folder_takes_the_name(proc: ProcFs) -> None:
    names = Names({"1": "shop"}, proc)
    assert names.give(target(pid=1), ()) == "shop"

    assert names.give(target(pid=2, port=None, socket=None), ()) == "shop", "it does not listen yet"
    assert names.give(target(pid=2, container="x"), ()) == "3306", "another file system's /var/lib/mysql"


def test_a_server_that_does_not_listen_yet_is_named_by_the_port_it_will_have(proc: ProcFs) -> None:
    assert Names({}, proc).give(target(pid=3, port=None, socket=None), ()) == "3399"


def test_a_makeshift_name_is_given_up_for_the_port(proc: ProcFs) -> None:
    names = Names({}, proc)
    assert names.give(target(pid=1, port=None, socket=None), ()) == "/var/lib/mysql"
    assert names.give(target(pid=1, port=None), ()) == "/tmp/mysql.sock"  # noqa: S108
    assert names.give(target(pid=1), ()) == "3306"
    assert names.give(target(pid=2, port=None, socket=None), ()) == "3306"
