"""Test that nothing reveals passwords, and that other users cannot access Innoscope's files."""

from __future__ import annotations

import os
import re
import stat
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import innoscope as innoscope_package
from innoscope.common.errors import BadFile
from innoscope.common.supervision import Supervisor
from innoscope.daemon.agent import config
from innoscope.daemon.http import web_config
from innoscope.daemon.sensor.server import SocketServer
from innoscope.metrics.collectors.toggles import TogglesFile
from innoscope.toggles import status_file
from safety.agenting import Running
from safety.command import innoscope
from safety.privileges import NOBODY
from safety.sensing import Sensing
from servers import Server

if TYPE_CHECKING:
    from collections.abc import Iterator

ACCOUNT, PASSWORD = "innoscope", "xyzzy-4711"
WRONG = "plugh-0815"
#: A script that tries, as the user nobody, to access a process, its socket and files, and prints what
#: succeeds.
_STRANGER = """
import os, signal, socket, sys
pid, path, *files = sys.argv[1:]
os.setgroups([]); os.setgid(65534); os.setuid(65534)
def connect():
    with socket.socket(socket.AF_UNIX) as wire: wire.connect(path)
tries = {"connect": connect, "signal": lambda: os.kill(int(pid), signal.SIGTERM)}
for name in ("environ", "mem", "maps", "auxv", "stack", "fd/0", "cwd/."):
    tries[name] = lambda name=name: open(f"/proc/{pid}/{name}", "rb").close()
for file in files:
    tries[file] = lambda file=file: open(file, "rb").close()
    tries["change " + file] = lambda file=file: open(file, "r+b").close()
    tries["remove " + file] = lambda file=file: os.rename(file, file + ".x")
for name, attempt in tries.items():
    try:
        attempt()
        print(name)
    except PermissionError:
        pass
"""


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server("mysql-5.6.24") as server:
        connection = server.connect()
        with connection.cursor() as cursor:
            cursor.execute(f"CREATE USER {ACCOUNT}@localhost IDENTIFIED BY '{PASSWORD}'")
            cursor.execute(f"GRANT PROCESS ON *.* TO {ACCOUNT}@localhost")
        connection.close()
        yield server


@pytest.fixture(scope="module")
def sensing(server: Server) -> Iterator[Sensing]:
    with Sensing("--no-probes", only=[server]) as sensing:
        yield sensing


def written(path: Path, text: str, mode: int = 0o600) -> Path:
    path.write_text(text)
    path.chmod(mode)
    return path


def stranger(pid: int, path: Path, *files: Path) -> list[str]:
    """Return the accesses that succeed for the user nobody."""
    command = [sys.executable, "-I", "-c", _STRANGER, str(pid), str(path), *map(str, files)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
    return done.stdout.splitlines()


@pytest.mark.parametrize("password", [PASSWORD, WRONG], ids=["right", "wrong"])
def test_passwords_are_not_visible_to_others(
    password: str, server: Server, sensing: Sensing, folder: Path
) -> None:
    """Check processes, logs and pages, with the right password and with a wrong one."""
    file = written(folder / "my.cnf", f"[client]\nuser={ACCOUNT}\npassword={password}\n")
    arguments = ("--defaults-file", file, "--log-level", "debug")
    with Running(server, *arguments, sensor=sensing.path) as agent:
        up = int(password == PASSWORD)
        agent.until(lambda scrape: scrape.value("sql_up") == up)
        paths = (
            "/",
            "/metrics",
            "/api/probes",
            "/api/stacks",
            "/api/findings",
            "/api/incidents",
            "/api/sessions",
        )
        pages = b"".join(agent.get(path)[1] for path in paths)
        for pid in (agent.pid, sensing.pid):
            for name in ("cmdline", "environ"):
                assert password.encode() not in Path(f"/proc/{pid}/{name}").read_bytes()
        assert stranger(agent.pid, sensing.path, file) == []
        assert stranger(sensing.pid, sensing.path) == []
        for text in (agent.log, sensing.log, pages.decode()):
            assert password not in text


@pytest.mark.parametrize(
    "text",
    [
        f"[sql]\npassword = '{PASSWORD}'\n",
        f"[sql]\ndefaults_file = '{PASSWORD}\n",
        f"[sql]\ndefaults_file = {PASSWORD}\n",
        f"password: {PASSWORD}\n",
        f"[web]\nbasic_auth_users = {{ann = '{PASSWORD}'}}\n",
        f"[[server]]\nname = 'a'\nport = 1\npassword = '{PASSWORD}'\n",
        f"[sql]\nuser = 'a'\nuser = '{PASSWORD}'\n",
        f"[push]\nurl = 'http://ann:{PASSWORD}@profiles.example.net'\nkind = 'pyroscope'\n",
        f"[push]\nbearer_token = '{PASSWORD}'\n",
    ],
)
def test_errors_in_the_configuration_show_no_secret(text: str, tmp_path: Path) -> None:
    file = written(tmp_path / "agent.toml", text)
    with pytest.raises(BadFile) as caught:
        config.load(file)

    assert PASSWORD not in f"{caught.value.what} {caught.value.remedy}"


@pytest.mark.parametrize(
    "text",
    [
        f"basic_auth_users: {{ann: {PASSWORD}}}\n",
        f"basic_auth_users: {{ann: *{PASSWORD}}}\n",
        f"basic_auth_users: {{ann: !{PASSWORD} x}}\n",
        f"basic_auth_users: {{ann: !{PASSWORD}! x}}\n",
        f"basic_auth_users: {{ann: &{PASSWORD} }}\n  - a: b: c\n",
        f"basic_auth_users:\n  ann: '{PASSWORD}\n",
        f'basic_auth_users:\n  ann: "{PASSWORD}\\q"\n',
        f"basic_auth_users:\n  ann: {PASSWORD}: x\n",
        f"basic_auth_users: [{PASSWORD}]\n",
        f"basic_auth_users: {PASSWORD}\n",
        f"{PASSWORD}\n",
        f"tls_server_config: {{cert_file: c, key_file: k, key: {PASSWORD}}}\n",
        f"http_server_config: {{headers: {{Authorization: {PASSWORD}}}}}\n",
    ],
)
def test_errors_in_the_web_configuration_show_no_secret(text: str, tmp_path: Path) -> None:
    file = written(tmp_path / "web.yaml", text)
    with pytest.raises(BadFile, match=r"web\.yaml") as caught:
        web_config.load(file)

    assert PASSWORD not in f"{caught.value.what} {caught.value.remedy}"


def test_option_files_with_unsafe_permissions_are_reported(tmp_path: Path) -> None:
    """Check that a world-readable file causes a warning, and that a world-writable file is rejected."""
    file = written(tmp_path / "my.cnf", f"[client]\npassword={PASSWORD}\n[broken\n=\n\0\n", 0o644)
    main = written(tmp_path / "agent.toml", f"[sql]\ndefaults_file = '{file}'\n")

    def check() -> tuple[int, str, str]:
        done = innoscope("agent", "--config.file", main, "--check")
        assert PASSWORD not in done.stdout + done.stderr
        return done.returncode, done.stdout, done.stderr

    code, good, warning = check()
    assert (code, good) == (0, "the configuration is valid\n")
    assert f"{file} contains a password and is readable by everyone" in warning
    file.chmod(0o640)
    assert check() == (0, "the configuration is valid\n", "")
    file.chmod(0o666)
    assert check()[0] == 9


def test_the_status_file_of_toggles_is_readable_but_not_writable(folder: Path) -> None:
    """Check that all users can read toggles.json, and that only root can change the file."""
    file = folder / "toggles.json"
    status_file.write(file, {"version": 1, "written_at": 1, "servers": []})

    assert stat.S_IMODE(file.stat().st_mode) == 0o644
    accesses = stranger(os.getpid(), folder, file)
    assert [one for one in accesses if str(folder) in one] == [str(file)]
    file.unlink()
    os.mkfifo(file)
    reader = TogglesFile(file)
    reader.read()  # must not block


def test_status_files_are_not_written_through_links(tmp_path: Path) -> None:
    """Write toggles.json as root into the sensor's directory, where the sensor's user could create links."""
    victim = written(tmp_path / "victim", "precious")
    run = tmp_path / "run"
    run.mkdir()
    os.chown(run, NOBODY, NOBODY)
    ended = threading.Event()

    def attack() -> None:
        while not ended.is_set():
            for entry in run.iterdir():
                with suppress(OSError):
                    entry.unlink()
                    entry.symlink_to(victim)

    attacking = threading.Thread(target=attack)
    attacking.start()
    try:
        for _ in range(300):
            with suppress(OSError):
                status_file.write(run / "toggles.json", {"version": 1})
    finally:
        ended.set()
        attacking.join()

    assert victim.read_text() == "precious"
    assert stat.S_IMODE(victim.stat().st_mode) == 0o600


def test_the_sensors_socket_is_not_created_through_links(tmp_path: Path) -> None:
    """Check that a user who can write to the socket's directory cannot change other files through links."""
    victim = written(tmp_path / "victim", "precious")
    path = tmp_path / "run" / "sensor.sock"
    path.parent.mkdir()
    path.symlink_to(victim)
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    partial.symlink_to(victim)
    before = os.umask(0)
    try:
        with pytest.raises(Exception, match="not a socket"):
            SocketServer(str(path), dict, Supervisor())
        path.unlink()
        path.symlink_to(tmp_path / "nothing")
        server = SocketServer(str(path), dict, Supervisor())
    finally:
        assert os.umask(before) == 0, "the umask was changed permanently"
    try:
        assert path.is_socket()
        assert not path.is_symlink()
        assert stat.S_IMODE(path.stat().st_mode) == 0o660
    finally:
        server.close()

    assert (victim.read_text(), stat.S_IMODE(victim.stat().st_mode)) == ("precious", 0o600)
    assert not (tmp_path / "nothing").exists()


def test_no_file_has_a_fixed_name_in_a_shared_folder() -> None:
    folder = Path(innoscope_package.__file__).parent
    named = re.compile(r"[\"'](/tmp|/var/tmp|/dev/shm)(/|[\"'])")
    found = [path for path in folder.rglob("*.py") if named.search(path.read_text())]

    assert not found
