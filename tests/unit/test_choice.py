"""Innoscope logs in to a container's server only if a user selected it, and verifies it first."""

from __future__ import annotations

import os
import re
import socket
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from innoscope.common.errors import SqlFailed
from innoscope.daemon.agent import servers
from innoscope.daemon.agent.config import Server as Named
from innoscope.daemon.protocol import messages
from innoscope.diagnose.watch import live
from innoscope.metrics.collectors.sql_failures import explain
from innoscope.target import choice, discover, login, peer, sql
from innoscope.target.credentials import Credentials, TlsOptions
from innoscope.target.login import LocalConnection
from innoscope.target.proc import ProcFs
from innoscope.target.unanswered import Unanswered
from unit.snapshots import target

if TYPE_CHECKING:
    from collections.abc import Iterator

    from innoscope.target.model import Target

HOST, NESTED, IN_CGROUP, SHARED = 1, 2, 3, 4
#: The path of an option file that does not exist, so that a test fails if it opens the file.
NO_FILE = "/nowhere/my.cnf"


@pytest.fixture
def proc(tmp_path: Path) -> ProcFs:
    """Return a fake /proc with three processes.

    HOST is not in a container, NESTED is in another pid namespace, and IN_CGROUP is in a Docker cgroup but in
    the host's pid namespace.
    """
    for pid, inner in ((HOST, "1"), (NESTED, "2\t1"), (IN_CGROUP, "3")):
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "status").write_text(
            f"Name:\tmysqld\nUid:\t999\t999\t999\t999\nNSpid:\t{inner}\n"
        )
        docker = f"0::/docker/{'ab' * 32}\n" if pid == IN_CGROUP else "0::/system.slice/mysql.service\n"
        (tmp_path / str(pid) / "cgroup").write_text(docker)
    return ProcFs(tmp_path)


@pytest.fixture
def listening(tmp_path: Path) -> Iterator[str]:
    """Yield the path of a socket on which this process listens."""
    path = str(tmp_path / "my.sock")
    with closing(socket.socket(socket.AF_UNIX)) as listener:
        listener.bind(path)
        listener.listen()
        yield path


def contained(**changes: object) -> Target:
    """Return a target for this process, as if it ran in a container."""
    return target(**{"pid": os.getpid(), "container": "ab" * 6, **changes})


@pytest.mark.parametrize("pid", [NESTED, IN_CGROUP])
def test_discovered_container_server_gets_no_account(proc: ProcFs, pid: int) -> None:
    found = target(pid=pid)
    with pytest.raises(choice.NotChosen, match=rf"in a container.*only when you name it.*--pid {pid}"):
        sql.connect(found, NO_FILE, proc=proc)
    with pytest.raises(choice.NotChosen):
        sql.connect_tcp("127.0.0.1", 3306, NO_FILE, target=found, proc=proc)
    choice.require_chosen(proc, target(pid=pid, chosen=True))


@pytest.mark.parametrize(
    ("container", "expected"),
    [(None, False), ("mnt", False), ("mnt,net", False), ("mnt,pid", True), ("user", True), ("ab" * 6, True)],
)
def test_container_reported_by_the_sensor_counts(
    proc: ProcFs, container: str | None, *, expected: bool
) -> None:
    assert choice.in_container(proc, target(pid=HOST, container=container)) is expected


def test_ended_server_is_not_queried(proc: ProcFs) -> None:
    with pytest.raises(SqlFailed, match="has exited"):
        sql.connect(target(pid=99), NO_FILE, proc=proc)


def test_password_is_sent_only_to_a_verified_server_on_this_host(proc: ProcFs) -> None:
    account, budget = Credentials("ann", "secret"), login.budget(1)

    ours = sql._to_target(proc, target(pid=HOST), account, budget, "localhost", None)
    theirs = sql._to_target(proc, target(pid=NESTED, chosen=True), account, budget, "localhost", None)

    assert isinstance(ours, LocalConnection)
    assert ours._verified
    assert not isinstance(theirs, LocalConnection)
    assert not vars(theirs).get("_secure", False), "PyMySQL would send the password in the clear"
    assert not theirs._verified
    with pytest.raises(choice.NotChosen):
        sql._to_target(proc, target(pid=NESTED), account, budget, "localhost", None)


@pytest.mark.parametrize("ca", [None, "/etc/ssl/certs/ca-certificates.crt"])
def test_certificate_verifies_a_server_in_a_container(
    proc: ProcFs, monkeypatch: pytest.MonkeyPatch, ca: str | None
) -> None:
    monkeypatch.setattr(login, "_context", lambda _tls: None)
    monkeypatch.setattr(login, "tls_context", lambda _context, _budget: None)
    tls, chosen = TlsOptions(ca=ca), target(pid=NESTED, chosen=True)

    found = sql._to_target(proc, chosen, Credentials("ann", "secret"), login.budget(1), "127.0.0.1", tls)

    assert found._verified is (ca is not None)


def test_a_server_may_be_process_1_of_a_container(proc: ProcFs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer, "listener", lambda _path: peer.INIT_PID)

    assert choice.reaches(proc, target(pid=peer.INIT_PID, container="user"), "/run/a.sock", None) is True


def test_connections_are_created_in_one_module() -> None:
    package = Path(sql.__file__).parents[1]
    making = re.compile(r"\b(?:Local)?Connection\((?!Driver|Connection\))")
    using = {
        str(path.relative_to(package)) for path in package.rglob("*.py") if making.search(path.read_text())
    }
    assert using - {"target/sql.py"} == set()
    text = (package / "target" / "sql.py").read_text()
    assert len(re.findall(r"\bLocalConnection\(", text)) == 1
    assert len(re.findall(r"(?<!Local)\bConnection\(", text)) == 2, (
        "one for a container, one for another host"
    )


def test_pid_or_reachable_socket_chooses_a_server(monkeypatch: pytest.MonkeyPatch, listening: str) -> None:
    monkeypatch.setattr(discover, "_must_be_readable", lambda *_: None)

    def find(found: Target, **named: object) -> bool:
        monkeypatch.setattr(discover, "_choose", lambda *_: found)
        return discover.find_one(**named).chosen  # type: ignore[arg-type]

    assert find(contained(), pid=os.getpid())
    assert not find(contained()), "the only server of the host"
    assert find(contained(socket="/inside/my.sock"), socket=listening), "the same socket"
    assert not find(contained(pid=1, socket=listening), socket=listening), "the same path in another root"
    assert not find(contained(socket="/nowhere/my.sock"), socket="/nowhere/my.sock")


def test_port_chooses_only_in_our_network_namespace(monkeypatch: pytest.MonkeyPatch) -> None:
    ours = contained(port=3306)
    assert choice.chosen_by(ProcFs(), ours, None, 3306)
    assert not choice.chosen_by(ProcFs(), ours, None, 3307)
    assert not choice.chosen_by(ProcFs(), ours, None, None)
    monkeypatch.setattr(ProcFs, "network", lambda _self, pid: hash(pid))
    assert not choice.chosen_by(ProcFs(), ours, None, 3306)


def test_agent_entry_chooses_only_the_server_behind_its_socket(
    monkeypatch: pytest.MonkeyPatch, listening: str
) -> None:
    seen: list[bool] = []
    monkeypatch.setattr(sql, "connect", lambda one, *_, **__: seen.append(one.chosen))
    for named in (None, Named("a", socket=listening), Named("b", socket="/nowhere"), Named("c", port=1)):
        servers._connect(contained(socket=listening), named, None, None, 1.0, Unanswered())
    assert seen == [False, True, False, False]


def test_choice_is_never_sent_to_or_from_the_sensor() -> None:
    sent = messages.encode_target(target(chosen=True))
    assert "chosen" not in sent
    assert not messages.decode_target(sent | {"chosen": True}).chosen
    assert "chosen" not in target(chosen=True).document()


def test_successor_of_a_chosen_server_is_not_chosen() -> None:
    found = live._successor(target(chosen=True), lambda *_: target(pid=5, chosen=True))
    assert found is not None
    assert not found.chosen


def test_refusal_of_the_agent_names_the_setting(proc: ProcFs) -> None:
    with pytest.raises(choice.NotChosen) as caught:
        choice.require_chosen(proc, target(pid=NESTED))
    failed = explain(caught.value)
    assert failed.reason == "refused"
    assert "[[server]]" in failed.words
