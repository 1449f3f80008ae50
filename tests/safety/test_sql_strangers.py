"""Test that the agent and the CLI send no secrets to a fake server, and that they cut off endless results."""

from __future__ import annotations

import hashlib
import json
import os
import re
import socket
import subprocess
import sys
import time
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from certificates import self_signed
from innoscope.common.errors import SqlFailed
from innoscope.target import credentials, login, sql
from innoscope.target.discover import find_one
from innoscope.target.proc import ProcFs
from innoscope.target.sql_errors import explaining
from innoscope.target.wire import Wire
from safety.agenting import Running
from safety.command import innoscope
from safety.fake_server import FORMS, NONCE, PLUGINS
from safety.sensing import Sensing
from safety.strangers import Strangers
from safety.tenant import Tenant
from servers import Keeper, Server

if TYPE_CHECKING:
    from collections.abc import Iterator

    from innoscope.target.model import Target

PASSWORD = "xyzzy-4711-plugh"  # noqa: S105
#: Plugins that need the password itself for full authentication.
FULL = ("sha256_password", "caching_sha2_password")
_HERE = Path(__file__).parent
_MOST_BYTES = 20 << 20
_MOST_S = 5.0
_PATIENCE_S = 30.0
_FAILED = re.compile(r'"name":"sql","ok":false,"why":"(?!timeout:)')


@contextmanager
def fake(*options: object) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """Start a fake server and yield it with its port."""
    command = [sys.executable, str(_HERE / "fake_server.py"), *map(str, options)]
    with Keeper() as keeper:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        keeper.watch(process.pid)
        assert process.stdout is not None
        yield process, int(process.stdout.readline().split()[1])
        process.kill()
        process.wait()
        process.stdout.close()


def received(process: subprocess.Popen[str]) -> bytes:
    """Kill the fake server and return everything that it received."""
    process.kill()
    assert process.stdout is not None
    return b"".join(bytes.fromhex(json.loads(line)) for line in process.stdout)


def assert_no_secret(got: bytes) -> None:
    raw = PASSWORD.encode()
    for secret in (raw, hashlib.sha1(raw).digest(), hashlib.sha256(raw).digest()):  # noqa: S324
        assert secret not in got


def answers(got: bytes) -> Iterator[bytes]:
    """Yield the authentication data of each packet of one or more logins without TLS."""
    while got:
        length, number = int.from_bytes(got[:3], "little"), got[3]
        body, got = got[4 : 4 + length], got[4 + length :]
        if number == 1:  # the login packet: 32 bytes, the user, and the data preceded by its length
            _, _, body = body[32:].partition(b"\0")
            body = body[1 : 1 + body[0]]
        yield body


def scrambles() -> set[bytes]:
    """Return the data from which the password cannot be recovered: two scrambles, and requests for a key."""
    sha1 = hashlib.sha1(PASSWORD.encode()).digest()  # noqa: S324
    sha256 = hashlib.sha256(PASSWORD.encode()).digest()
    native = hashlib.sha1(NONCE + hashlib.sha1(sha1).digest()).digest()  # noqa: S324
    caching = hashlib.sha256(hashlib.sha256(sha256).digest() + NONCE).digest()
    return {b"", b"\1", b"\2", _xor(sha1, native), _xor(sha256, caching)}


def _xor(one: bytes, other: bytes) -> bytes:
    return bytes(left ^ right for left, right in zip(one, other, strict=True))


@pytest.fixture
def account(folder: Path) -> str:
    file = folder / "my.cnf"
    file.write_text(f"[client]\nuser=innoscope\npassword={PASSWORD}\n")
    file.chmod(0o600)
    return str(file)


@pytest.fixture
def named(folder: Path) -> Iterator[Target]:
    """Start a root process that has a server's name, with options that name another process's socket."""
    with Strangers(folder) as strangers:
        pid = strangers.start(b"--socket=%s/s.sock" % os.fsencode(folder), uid=0)
        yield find_one(pid)


@pytest.mark.parametrize("asked", PLUGINS)
@pytest.mark.parametrize("first", ["mysql_native_password", None])
def test_a_stranger_on_the_socket_receives_no_account(
    named: Target, folder: Path, account: str, first: str | None, asked: str
) -> None:
    with fake("--socket", folder / "s.sock", "--first", first or asked, "--asked", asked) as (process, _):
        with pytest.raises(SqlFailed, match="no account was sent"):
            sql.connect(named, account)
        result = innoscope("doctor", "--pid", named.pid, "--defaults-file", account)
        assert "no account was sent" in result.stdout, result.stdout + result.stderr
        assert received(process) == b""


@pytest.mark.parametrize("asked", PLUGINS)
def test_a_stranger_on_the_port_receives_no_account(named: Target, account: str, asked: str) -> None:
    with fake("--port", 0, "--first", asked, "--asked", asked) as (process, port):
        with pytest.raises(SqlFailed, match="no account was sent"):
            sql.connect(replace(named, socket=None, port=port), account)
        with pytest.raises(SqlFailed, match="no account was sent"):
            sql.connect_tcp("127.0.0.1", port, account, target=named)
        with pytest.raises(SqlFailed, match="does not support TLS"):
            sql.connect_tcp("127.0.0.2", port, account)  # an address that counts as another host
        assert received(process) == b""


@pytest.mark.parametrize("asked", PLUGINS)
@pytest.mark.parametrize("over", ["socket", "port"])
def test_a_verified_server_receives_the_password_only_for_full_authentication(
    named: Target, folder: Path, account: str, asked: str, over: str
) -> None:
    """Check that only the two SHA-256 plugins get the password, and never encrypted with the server's key."""
    where = ("--socket", folder / "own.sock") if over == "socket" else ("--port", 0)
    with fake(*where, "--first", PLUGINS[0], "--asked", asked) as (process, port):
        begun = ProcFs().stat(process.pid).start_time
        itself = replace(named, pid=process.pid, start_time=begun, socket=str(folder / "own.sock"))
        if over == "port":
            itself = replace(itself, socket=None, port=port)
        with pytest.raises(SqlFailed):
            sql.connect(itself, account, timeout=_PATIENCE_S)
        assert process.stdout is not None
        got = bytes.fromhex(json.loads(process.stdout.readline()))
    sent = set(answers(got))
    assert sent, "no login was tried"
    assert sent - scrambles() == ({PASSWORD.encode() + b"\0"} if asked in FULL else set())
    if asked not in FULL:
        assert_no_secret(got)


@pytest.mark.parametrize("asked", PLUGINS)
@pytest.mark.parametrize("first", ["mysql_native_password", None])
def test_an_unverified_server_receives_no_password(
    folder: Path, account: str, first: str | None, asked: str
) -> None:
    budget = login.budget(_PATIENCE_S)
    connection = login.Connection(
        credentials.find(account), budget, verified=False, host="localhost", tls=None
    )
    path = folder / "own.sock"
    with fake("--socket", path, "--first", first or asked, "--asked", asked) as (process, _):
        with (
            pytest.raises(SqlFailed),
            explaining("innoscope", str(path)),
            closing(Wire(socket.AF_UNIX, str(path), budget)) as wire,
        ):
            connection.log_in(wire, str(path))
        assert process.stdout is not None
        got = bytes.fromhex(json.loads(process.stdout.readline()))
    assert got or (first is None and asked == "sha256_password"), "no login was tried"
    assert set(answers(got)) <= scrambles()
    assert_no_secret(got)


def test_the_agent_sends_nothing_to_a_stranger(named: Target, folder: Path, account: str) -> None:
    """Let root run the process, so that it is accepted as a server; another process owns its socket."""
    with (
        fake("--socket", folder / "s.sock", "--asked", "mysql_clear_password") as (process, _),
        Sensing("--no-probes", "--only", named.pid) as sensor,
    ):
        server = Server.__new__(Server)
        server._folder = type("Place", (), {"inside": folder})()
        options = ("[sql]", f"defaults_file = '{account}'")
        with Running(server, sensor=sensor.path, options=options) as agent:
            scrape = agent.until(lambda found: found.value("sensor_up") == 1)
            assert scrape.value("mysqld_up") == 0, "another process has the configured socket"
        assert received(process) == b""


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("first", ["sha256_password", "caching_sha2_password"])
def test_no_greeting_makes_the_client_send_the_password_to_an_unverified_server(
    folder: Path, account: str, first: str, form: str
) -> None:
    """Try all greetings. Over TLS, PyMySQL sends the password at once if a greeting names sha256_password."""
    self_signed(folder)
    both = folder / "both.pem"
    both.write_text((folder / "cert.pem").read_text() + (folder / "key.pem").read_text())
    with fake("--port", 0, "--first", first, "--form", form, "--certificate", both) as (process, port):
        with pytest.raises(SqlFailed) as caught:  # the address counts as another host
            sql.connect_tcp("127.0.0.2", port, account, timeout=_PATIENCE_S)
        assert process.stdout is not None
        got = bytes.fromhex(json.loads(process.stdout.readline()))
    assert_no_secret(got)
    if first == "sha256_password" and form != "without the rest of the nonce":  # that form hides the plugin
        assert "was not sent" in caught.value.what or "not a MySQL server" in caught.value.what
        assert got == b""


@pytest.mark.parametrize(
    "command",
    [
        ("doctor",),
        ("stacks", "--queries"),
        ("diagnose", "--seconds", "1", "--no-probes"),
        ("watch", "--list", "--no-probes"),
        ("toggle", "list"),
    ],
    ids=lambda command: str(command[0]),
)
def test_a_containers_server_that_was_not_chosen_receives_nothing(
    folder: Path, account: str, command: tuple[str, ...]
) -> None:
    with Tenant(folder, "caching_sha2_password") as tenant:
        result = innoscope(*command, "--defaults-file", account, under=tenant.under)
        assert tenant.stop() == []
    if command[0] in ("doctor", "stacks", "diagnose"):
        assert "SQL is used only when you name it" in result.stdout + result.stderr, result.stderr


@pytest.mark.parametrize("asked", PLUGINS)
def test_a_containers_server_that_was_chosen_receives_no_password(
    folder: Path, account: str, asked: str
) -> None:
    with Tenant(folder, asked) as tenant:
        result = innoscope("doctor", "--pid", tenant.pid, "--defaults-file", account, under=tenant.under)
        got = b"".join(tenant.stop())
    assert "SQL is used only when you name it" not in result.stdout
    assert got or asked == "sha256_password", "no login was tried"
    assert set(answers(got)) <= scrambles()
    assert_no_secret(got)


def until_asked(agent: Running) -> str:
    """Return the agent's status after a query of the only server has failed, other than by a timeout."""
    deadline = time.monotonic() + _PATIENCE_S
    while not _FAILED.search(page := agent.get("/api/status")[1].decode()):
        assert time.monotonic() < deadline, page + agent.log
        time.sleep(0.3)
    return page


@pytest.mark.parametrize("hidden", [True, False])
def test_the_agent_connects_to_a_containers_server_only_at_its_configured_socket(
    folder: Path, account: str, *, hidden: bool
) -> None:
    """Let a tenant choose the path of its socket, which may belong to another process on the host."""
    with Tenant(folder, "caching_sha2_password", hidden=hidden) as tenant:
        server = Server.__new__(Server)
        server._folder = type("Place", (), {"inside": tenant.socket.parent})()
        options = ("[sql]", f"defaults_file = '{account}'")
        with Sensing("--no-probes", under=tenant.under) as sensor:
            agent = Running(server, sensor=sensor.path, under=tenant.under, options=options)
            configuration = agent.home / "agent.toml"
            configuration.write_text(configuration.read_text().replace("only_named = true", ""))
            with agent:
                page = until_asked(agent)
        got = tenant.stop()
    assert ("SQL is used only when you name it" in page) is hidden
    up = {server["name"]: server["up"] for server in json.loads(page)["servers"]}
    assert up["under test"] is not hidden
    assert (got == []) is hidden
    assert_no_secret(b"".join(got))


@pytest.mark.parametrize("what", ["rows", "nulls", "long", "columns", "slow"])
def test_an_endless_result_is_cut_off(folder: Path, account: str, what: str) -> None:
    path = folder / "own.sock"
    with fake("--socket", path, "--stream", what) as (process, _):
        done = subprocess.run(
            [sys.executable, "-m", "safety.stream_main", str(process.pid), str(path), account],
            capture_output=True, text=True, timeout=60, check=False,
            env={**os.environ, "PYTHONPATH": str(_HERE.parent)},
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        cost = json.loads(done.stdout)
    assert cost["seconds"] < _MOST_S
    assert cost["bytes"] < _MOST_BYTES
    assert "longer than" in cost["error"] or "did not answer in time" in cost["error"]


def test_all_statements_use_one_helper() -> None:
    package = Path(sql.__file__).parents[1]
    using = {
        str(path.relative_to(package))
        for path in package.rglob("*.py")
        if "cursor.execute" in path.read_text()
    }
    assert using == {"target/sql.py"}
