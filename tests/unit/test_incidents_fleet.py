"""`innoscope incidents` lists, fetches and shows files of many agents, which may be down or hostile."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

from fake_agent import FakeAgent
from innoscope.cli import main as cli_main
from innoscope.common.errors import BadFile
from innoscope.daemon.fleet import agents
from innoscope.daemon.fleet.agents import AgentAddress
from innoscope.diagnose.incident import files
from unit.captures import capture

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

OLD = "stall-mysql-1-20260101T000000Z.innoscope"
NEW = "stall-mysql-1-20260101T000100Z.innoscope"
#: A loopback address at which nothing listens.
DOWN = "http://127.0.0.1:9"


def row(name: str, at: float, size: int, **more: Any) -> dict[str, Any]:
    return {"file": name, "at": at, "bytes": size, "server": "orders", "score": 88.0, **more}


@pytest.fixture(scope="module")
def content(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("made") / NEW
    files.save(path, capture())
    return path.read_bytes()


@pytest.fixture
def two(content: bytes) -> Iterator[tuple[FakeAgent, FakeAgent]]:
    """Yield two agents: the first has an old file, the second a new one."""
    with ExitStack() as stack:
        first = FakeAgent({"incidents": [row(OLD, 1000, len(content), title="old")]}, {OLD: content})
        second = FakeAgent(
            {"incidents": [row(NEW, 2000, len(content), server="stock", title="new")]}, {NEW: content}
        )
        yield stack.enter_context(first), stack.enter_context(second)


def run(*arguments: object) -> int:
    return cli_main.main(["incidents", *map(str, arguments)])


def test_incidents_of_all_agents_are_listed_newest_first(
    two: tuple[FakeAgent, FakeAgent], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "agents.json"
    targets = [one.url.removeprefix("http://") for one in two]
    file.write_text(json.dumps([{"targets": targets, "labels": {"cluster": "a"}}]))
    assert run("list", "--agents", file) == 0
    heading, first, second = capsys.readouterr().out.splitlines()
    assert heading.split() == ["TIME", "AGENT", "SERVER", "SCORE", "INCIDENT", "FILE"]
    assert NEW in first
    assert OLD in second

    assert run("list", "--agents", file, "--server", "orders", "--json") == 0
    document = json.loads(capsys.readouterr().out)
    [one] = document["incidents"]
    assert (one["agent"], one["file"], one["title"]) == (two[0].url, OLD, "old")
    assert document["errors"] == []


def test_failed_agent_is_named_with_the_reason_and_the_others_are_listed(
    two: tuple[FakeAgent, FakeAgent], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("list", "-a", two[0].url, "-a", DOWN) == 22
    out, err = capsys.readouterr()
    assert OLD in out
    assert err.startswith(f"innoscope: cannot connect to {DOWN}: Connection refused\n  on 127.0.0.1: ")


def test_files_are_fetched_once(
    two: tuple[FakeAgent, FakeAgent], content: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ("fetch", "-a", two[0].url, "-a", two[1].url, "--dir", tmp_path)
    assert run(*options) == 0
    paths = sorted(tmp_path.rglob("*"))
    stored = [path for path in paths if path.is_file()]
    assert sorted(path.name for path in stored) == [OLD, NEW]
    assert {path.read_bytes() for path in stored} == {content}
    assert {path.stat().st_mode & 0o777 for path in stored} == {0o600}
    before = [len(one.requests) for one in two]
    assert run(*options) == 0
    assert [len(one.requests) for one in two] == [number + 1 for number in before]
    assert "0 fetched, 2 already in" in capsys.readouterr().err


def test_total_size_is_limited(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [row(NEW, 2000, 1 << 20), row(OLD, 1000, 1 << 20)]
    with FakeAgent({"incidents": rows}, {NEW: b"new"}) as agent:
        assert run("fetch", "-a", agent.url, "--dir", tmp_path, "--max-mb", 1) == 0
    assert "1 fetched, 0 already in" in (err := capsys.readouterr().err)
    assert "1 left out" in err


def test_file_that_exceeds_its_listed_size_is_not_stored(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [row(NEW, 2000, 0), row(OLD, 1000, 3)]
    with FakeAgent({"incidents": rows}, {NEW: b"x" * 1000, OLD: b"old"}) as agent:
        assert run("fetch", "-a", agent.url, "--dir", tmp_path, "--max-mb", 1) == 22
    assert "sent more than 0 bytes" in capsys.readouterr().err
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == [OLD]


def test_newest_or_linked_incident_is_shown_as_diagnose_does(
    two: tuple[FakeAgent, FakeAgent], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = run("open", "-a", two[0].url, "-a", two[1].url, "--dir", tmp_path)
    out = capsys.readouterr().out
    [path] = [path for path in tmp_path.rglob("*.innoscope") if path.name == NEW]
    assert cli_main.main(["diagnose", str(path)]) == code
    assert capsys.readouterr().out == out

    assert run("open", f"{two[0].url}/api/incidents?file={OLD}", "--dir", tmp_path) == code
    assert OLD in capsys.readouterr().out
    assert run("open", OLD, "-a", two[1].url, "--dir", tmp_path) == 1
    assert run("open", f"{two[0].url}/other?file={OLD}", "--dir", tmp_path) == 9


def test_password_is_sent_and_its_absence_explained(
    two: tuple[FakeAgent, FakeAgent], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    two[0].authorization = "Basic YW5uOnNlY3JldA=="
    assert run("list", "-a", two[0].url) == 22
    assert "--basic-auth-file" in capsys.readouterr().err
    password = tmp_path / "password"
    password.write_text("ann:secret\n")
    assert run("list", "-a", two[0].url, "--basic-auth-file", password) == 0


@pytest.mark.parametrize("link", ["http://db1.example:9977", "https://db1.example"])
def test_password_is_not_sent_to_an_agent_that_only_a_link_names(
    link: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    password = tmp_path / "password"
    password.write_text("ann:secret\n")
    command = ("open", f"{link}/api/incidents?file={NEW}", "--basic-auth-file", password)
    assert run(*command, "--agent", "http://db2.example:9977") == 9
    agent = agents.parse(link, "https").url
    assert capsys.readouterr().err.endswith(f"if you trust it: --agent {agent}\n")


def test_password_is_sent_to_an_agent_on_this_host(two: tuple[FakeAgent, FakeAgent], tmp_path: Path) -> None:
    two[0].authorization = "Basic YW5uOnNlY3JldA=="
    password = tmp_path / "password"
    password.write_text("ann:secret\n")
    link = f"{two[0].url}/api/incidents?file={OLD}"
    assert run("open", link, "--basic-auth-file", password, "--dir", tmp_path) == 18
    assert [path.name for path in tmp_path.rglob("*.innoscope")] == [OLD]


def test_password_is_sent_to_a_named_agent(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    password = tmp_path / "password"
    password.write_text("ann:secret\n")
    link = f"http://db1.invalid/api/incidents?file={OLD}"
    assert run("open", link, "--agent", "db1.invalid", "--basic-auth-file", password) == 22
    assert "cannot resolve db1.invalid" in capsys.readouterr().err


def test_busy_agent_is_asked_again(two: tuple[FakeAgent, FakeAgent]) -> None:
    two[0].busy = 2
    assert run("list", "-a", two[0].url) == 0
    two[0].busy = 3
    assert run("list", "-a", two[0].url) == 22


def test_unwritable_folder_is_an_error(two: tuple[FakeAgent, FakeAgent], tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert run("fetch", "-a", two[0].url, "-a", two[1].url, "--dir", tmp_path / "file" / "in") == 12


def test_interrupt_does_not_wait_for_agents() -> None:
    """Press Ctrl-C while an agent does not answer."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        command = [sys.executable, "-P", "-m", "innoscope.cli.main", "incidents", "list", "-a", url]
        process = subprocess.Popen([*command, "--timeout", "60"])
        with silent.accept()[0]:
            process.send_signal(signal.SIGINT)
            assert process.wait(20) == 130


@pytest.mark.parametrize("name", ["../../etc/passwd", "a.innoscope", "", "stall-mysql-1-20260101T000000Z.x"])
def test_other_file_names_are_ignored(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with FakeAgent({"incidents": [row(name, 1000, 1)]}, {name: b"x"}) as agent:
        assert run("fetch", "-a", agent.url, "--dir", tmp_path / "in") == 1
    assert not (tmp_path / "in").exists()
    assert "no incident matches" in capsys.readouterr().err


@pytest.mark.parametrize(
    "body",
    [
        b"", b"[]", b"<html>", b"\xff", b'{"incidents": [{"file": 1}]}', b"[" * 100_000,
        b'{"incidents": "' + b"x" * 5_000_000 + b'"}',
    ],
)  # fmt: skip
def test_malformed_lists_are_errors(body: bytes, capsys: pytest.CaptureFixture[str]) -> None:
    with FakeAgent(body, {}) as agent:
        assert run("list", "-a", agent.url) == 22
        assert agent.url in capsys.readouterr().err


def test_text_of_an_agent_cannot_control_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    hostile = "\x1b[2J\n\u202eevil"
    with FakeAgent({"incidents": [row(NEW, 1000, 1, title=hostile, server=hostile)]}, {}) as agent:
        assert run("list", "-a", agent.url) == 0
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert "\u202e" not in out
    assert len(out.splitlines()) == 2


def test_file_that_is_too_large_or_truncated_leaves_nothing(tmp_path: Path) -> None:
    with FakeAgent({"incidents": [row(NEW, 1000, 1)]}, {NEW: b"x" * (files.MAX_FILE_BYTES + 1)}) as agent:
        assert run("fetch", "-a", agent.url, "--dir", tmp_path) == 22
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("db1", "http://db1:9977"),
        ("db1:80", "http://db1:80"),
        ("https://db1.example.net", "https://db1.example.net:9977"),
        ("http://[::1]:9977/", "http://[::1]:9977"),
    ],
)
def test_addresses_are_parsed(text: str, url: str) -> None:
    assert agents.parse(text, "http").url == url


@pytest.mark.parametrize(
    "text", ["", "ftp://db1", "http://a:b@db1", "db1:x", "db1:99999", "db1/path", "..:1", "a b", "db1?x=1"]
)
def test_malformed_addresses_are_refused(text: str) -> None:
    with pytest.raises(BadFile):
        agents.parse(text, "http")


def test_lists_and_targets_files_are_read(tmp_path: Path) -> None:
    plain = tmp_path / "agents.txt"
    plain.write_text("# ours\ndb1:9977\n\nhttps://db2  # the other\n")
    assert agents.load(plain, "http") == [
        AgentAddress("http", "db1", 9977),
        AgentAddress("https", "db2", 9977),
    ]
    targets = tmp_path / "agents.yml"
    targets.write_text(
        "- targets: [db1]\n- targets: ['db2:1']\n  labels: {__scheme__: https, cluster: users}\n"
    )
    assert agents.load(targets, "http") == [
        AgentAddress("http", "db1", 9977),
        AgentAddress("https", "db2", 1),
    ]
    plain.write_text("# none\n")
    with pytest.raises(BadFile, match="names no agents"):
        agents.load(plain, "http")
