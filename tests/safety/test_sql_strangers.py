"""Test that the agent and the CLI send no secrets to a fake server, and that they cut off endless results."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from certificates import self_signed
from innoscope.common.errors import SqlFailed
from innoscope.target import sql
from innoscope.target.discover import find_one
from innoscope.target.proc import ProcFs
from safety.agenting import Running
from safety.command import innoscope
from safety.fake_server import FORMS, PLUGINS
from safety.sensing import Sensing
from safety.strangers import Strangers
from safety.tenant import Tenant
from servers import Keeper, Server

if TYPE_CHECKING:
    from collections.abc import Iterator

    from innoscope.target.model import Target

PASSWORD = "xyzzy-4711-plugh"  # noqa: S105
_HERE = Path(__file__).parent
_MOST_BYTES = 20 << 20
_MOST_S = 5.0


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
def test_a_verified_server_receives_no_password_for_insecure_plugins(
    named: Target, folder: Path, account: str, asked: str, over: str
) -> None:
    """Check that only the two SHA-256 plugins get the password, and only over the server's own socket."""
    where = ("--socket", folder / "own.sock") if over == "socket" else ("--port", 0)
    with fake(*where, "--first", PLUGINS[0], "--asked", asked) as (process, port):
        begun = ProcFs().stat(process.pid).start_time
        itself = replace(named, pid=process.pid, start_time=begun, socket=str(folder / "own.sock"))
        with pytest.raises(SqlFailed):
            sql.connect(itself if over == "socket" else replace(itself, socket=None, port=port), account)
        assert process.stdout is not None
        got = bytes.fromhex(json.loads(process.stdout.readline()))
    assert got, "no login was tried"
    if not asked.startswith(("sha", "caching_sha")):
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
            scrape = agent.until(lambda found: found.why("sql") is not None)
            assert scrape.value("sql_up") == 0
        assert received(process) == b""


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("first", ["sha256_password", "caching_sha2_password"])
def test_no_greeting_makes_the_client_send_the_password_to_an_unverified_server(
    folder: Path, account: str, first: str, form: str
) -> None:
    """Try all greetings. Over TLS, PyMySQL immediately sends the password if one names sha256_password."""
    self_signed(folder)
    both = folder / "both.pem"
    both.write_text((folder / "cert.pem").read_text() + (folder / "key.pem").read_text())
    with fake("--port", 0, "--first", first, "--form", form, "--certificate", both) as (process, port):
        with pytest.raises(SqlFailed) as caught:
            sql.connect_tcp("127.0.0.2", port, account)  # an address that counts as another host
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
    assert_no_secret(got)


@pytest.mark.parametrize("hidden", [True, False])
def test_the_agent_connects_to_a_containers_server_only_at_its_configured_socket(
    folder: Path, account: str, *, hidden: bool
) -> None:
    """A tenant chooses the path of its socket. On the host, that path may belong to another process."""
    with Tenant(folder, "caching_sha2_password", hidden=hidden) as tenant:
        server = Server.__new__(Server)
        server._folder = type("Place", (), {"inside": tenant.socket.parent})()
        options = ("[sql]", f"defaults_file = '{account}'")
        with (
            Sensing("--no-probes", under=tenant.under) as sensor,
            Running(server, sensor=sensor.path, under=tenant.under, options=options) as agent,
        ):
            scrape = agent.until(lambda found: found.why("sql") is not None)
            assert scrape.value("sql_up") == 0
            page = agent.get("/api/status")[1].decode()
        got = tenant.stop()
    assert ("SQL is used only when you name it" in page) is hidden
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
