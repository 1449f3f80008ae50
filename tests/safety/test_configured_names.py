"""Test that a process in its own namespaces does not take a configured server's name."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from safety.agenting import Running
from safety.fake_server import PLUGINS
from safety.sensing import Sensing
from servers import Keeper, Server
from waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_HERE = Path(__file__).parent
_PATIENCE_S = 60.0
_APART = ("--net", "--mount")


class Impostor:
    """A fake server, run by root in its own namespaces, with the same socket path as ``server``.

    Its pid is known before ``start``, which makes it listen.
    """

    def __init__(self, server: Server, folder: Path, apart: Sequence[str] = _APART) -> None:
        self._folder = folder
        socket = f"{server.folder.inside}/s.sock"
        executable = folder / "mysqld"
        shutil.copy2(Path(sys.executable).resolve(), executable)
        fake = f"{executable} {_HERE / 'fake_server.py'} --socket {socket} --first {PLUGINS[0]}"
        command = f"mount -t tmpfs none {server.folder.inside} && exec {fake} --asked {PLUGINS[0]}"
        self._command = ["unshare", *apart, "sh", "-c", f"read start && {command}"]
        self._keeper = Keeper()

    def __enter__(self) -> Impostor:
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(self._command, stdin=pipe, stdout=pipe, text=True)
        self.pid = self._process.pid
        self._keeper.watch(self.pid)
        return self

    def start(self) -> None:
        """Start the fake server, and wait until it listens."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print("start", file=self._process.stdin, flush=True)
        assert self._process.stdout.readline().startswith("ready")

    def __exit__(self, *_: object) -> None:
        self._keeper.close()


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server("mysql-5.6.24") as running:
        yield running


@pytest.mark.parametrize("impostor_first", [True, False])
def test_the_server_keeps_its_name_and_the_other_process_gets_its_own(
    server: Server, folder: Path, *, impostor_first: bool
) -> None:
    with Impostor(server, folder) as impostor:
        sensor = Sensing("--no-probes", "--only", impostor.pid, only=[server])
        agent = Running(server, sensor=sensor.path, options=("[sql]", "enabled = false"))
        configuration = agent.home / "agent.toml"
        configuration.write_text(configuration.read_text().replace("only_named = true", ""))
        if impostor_first:
            impostor.start()
        with sensor, agent:
            until_found(agent, server.pid)
            if not impostor_first:
                impostor.start()
            found = until_found(agent, server.pid, impostor.pid)

    assert found[server.pid] == "under test"
    assert found[impostor.pid] != "under test"


@pytest.mark.parametrize("apart", [_APART, ("--mount",)])
def test_the_sensor_gives_the_name_to_the_server_that_listens(
    server: Server, folder: Path, apart: Sequence[str]
) -> None:
    """Let the other process start first, while no process listens at the path on the host."""
    name = f"shop={server.folder.inside}/s.sock"
    with Impostor(server, folder, apart) as impostor:
        sensor = Sensing("--no-probes", "--server", name, "--only", impostor.pid, only=[server])
        with stopped(server), sensor:
            impostor.start()
            before = until_watched(sensor, impostor.pid)
            assert (before[impostor.pid] == "shop") == (apart != _APART)
            server.start()
            until(lambda: watched(sensor).get(server.pid) == "shop", lambda: sensor.log, within_s=_PATIENCE_S)
            assert until_watched(sensor, impostor.pid)[impostor.pid] != "shop"


def test_a_server_keeps_its_name_in_the_sensor(server: Server, folder: Path) -> None:
    name = ("--server", f"shop={server.folder.inside}/s.sock")
    with (
        Impostor(server, folder, ("--mount",)) as impostor,
        Sensing("--no-probes", *name, "--only", impostor.pid, only=[server]) as sensor,
    ):
        impostor.start()
        found = until_watched(sensor, server.pid, impostor.pid)
        assert found[server.pid] == "shop"
        assert found[impostor.pid] != "shop"


@pytest.mark.parametrize("apart", [_APART, ("--mount",)])
def test_only_the_server_that_listens_is_watched(server: Server, folder: Path, apart: Sequence[str]) -> None:
    """Let the other process start first. In the same network, it is watched until the server listens."""
    with Impostor(server, folder, apart) as impostor:
        sensor = Sensing("--no-probes", only=[server])
        with stopped(server), sensor:
            impostor.start()
            if apart != _APART:
                until_watched(sensor, impostor.pid)
            server.start()
            until(lambda: running(sensor) == {server.pid}, lambda: sensor.log, within_s=_PATIENCE_S)
            assert (f"pid={impostor.pid}" in sensor.log) == (apart != _APART)


@contextmanager
def stopped(server: Server) -> Iterator[None]:
    """Stop the server, and start it at the end if it is not running."""
    server.stop()
    try:
        yield
    finally:
        if not server.running:
            server.start()


def running(sensor: Sensing) -> set[int]:
    """Return the pids of the watched servers that have not exited."""
    servers = sensor.client.collect().servers
    return {one.target.pid for one in servers if Path(f"/proc/{one.target.pid}").exists()}


def watched(sensor: Sensing) -> dict[int, str]:
    """Return the name of each process that the sensor watches."""
    return {one.target.pid: one.name for one in sensor.client.collect().servers}


def until_watched(sensor: Sensing, *pids: int) -> dict[int, str]:
    """Wait until the sensor watches these processes; return the name of each process."""

    def found() -> dict[int, str]:
        names = watched(sensor)
        return names if names.keys() >= set(pids) else {}

    return until(found, lambda: sensor.log, within_s=_PATIENCE_S)


def until_found(agent: Running, *wanted: int) -> dict[int, str]:
    """Wait until the agent has found these processes; return the name of each."""
    deadline = time.monotonic() + _PATIENCE_S
    while not (found := names(agent)).keys() >= set(wanted):
        assert time.monotonic() < deadline, f"{found}\n{agent.log}"
        time.sleep(0.3)
    return found


def names(agent: Running) -> dict[int, str]:
    """Return the name of each process that the agent shows. It may not have seen a configured server yet."""
    servers = json.loads(agent.get("/api/status")[1])["servers"]
    found = ((one["what"].rpartition(", pid "), one["name"]) for one in servers)
    return {int(pid): name for (_, known, pid), name in found if known}
