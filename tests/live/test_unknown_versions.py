"""Test that results are correct on versions that the catalog does not cover, and that gaps are reported.

The servers are real ones whose binaries report another version.
"""

from __future__ import annotations

import json
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from innoscope.sampling.engine import Engine
from innoscope.target.discover import find_one
from safety.command import innoscope
from scale import few, long
from servers import Server
from servers.renamed import renamed
from waiting import until_asleep
from workloads import Idle, RowLock, Sleep

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

#: Server, its version, and a version of the same length to report instead. In UNKNOWN, the catalog does not
#: know the series; in NEWER, it does.
UNKNOWN = (("mysql-8.0.31", "8.0.31", "9.99.0"), ("mariadb-10.11", "10.11.", "12.99."))
NEWER = (("mysql-5.7.22", "5.7.22", "5.7.99"),)
OF_THE_C_LIBRARY = {"fsync", "fdatasync", "pread", "mutex_wait"}
FOUND = 18  # the exit code of diagnose if there are findings
WAITERS, SLEEPERS, IDLE = 8, 4, 10


@contextmanager
def _renamed_server(name: str, changes: Mapping[str, str], folder: Path) -> Iterator[Server]:
    server = Server(name)
    server.installation = renamed(name, changes, folder / name)
    with server:
        yield server


@pytest.mark.parametrize("case", few((*UNKNOWN, *NEWER), UNKNOWN[0], reason="the rule is the same"))
def test_unknown_versions_have_no_wrong_class_and_no_false_calm(
    case: tuple[str, str, str], tmp_path: Path
) -> None:
    with (
        _renamed_server(case[0], {case[1]: case[2]}, tmp_path) as server,
        Idle(server, IDLE) as idle,
        Sleep(server, SLEEPERS) as sleep,
        RowLock(server, WAITERS) as waiting,
    ):
        target = find_one(server.pid)
        assert target.version_text.startswith(case[2])
        until_asleep(server.pid)
        snapshot = Engine(target).take_snapshot()
        waits = {thread.tid: thread.wait for thread in snapshot.threads}
        for load, wait in ((idle, "idle"), (sleep, "user_sleep"), (waiting, "row_lock")):
            threads = load.os_threads()
            assert threads
            assert {waits[tid] for tid in threads} == {wait}
        result = innoscope("diagnose", "--pid", server.pid, "-u", "root", "--seconds", 3, "--json")

    record = json.loads(result.stdout)
    assert result.returncode == FOUND
    assert not record["nothing_wrong"]
    assert record["findings"][0]["name"] in ("row_lock_convoy", "unexplained")


@pytest.mark.parametrize("case", few(UNKNOWN, UNKNOWN[0], reason="the rule is the same"))
def test_no_function_of_an_unknown_version_is_probed(case: tuple[str, str, str], tmp_path: Path) -> None:
    with _renamed_server(case[0], {case[1]: case[2]}, tmp_path) as server:
        result = innoscope("probes", "list", "--pid", server.pid, "--json")
        doctor = innoscope("doctor", "--pid", server.pid)

    assert f"the catalog covers {server.spec.flavour}" in doctor.stdout
    assert result.returncode == 0, result.stderr
    (server_probes,) = json.loads(result.stdout)
    assert {probe["probe"] for probe in server_probes["probes"] if probe["possible"]} <= OF_THE_C_LIBRARY


@long("the rule of the finding is tested in tests/unit")
def test_waits_in_unknown_functions_are_unexplained(tmp_path: Path) -> None:
    """Rename the functions by which the catalog recognizes a row-lock wait."""
    changes = {
        "8.0.31": "9.99.0",
        "lock_wait_suspend_thread": "lock_xxxx_suspend_thread",
        "row_mysql_handle_errors": "row_xxxxx_handle_errors",
    }
    with _renamed_server("mysql-8.0.31", changes, tmp_path) as server, RowLock(server, WAITERS):
        result = innoscope("diagnose", "--pid", server.pid, "-u", "root", "--seconds", 3, "--json")

    assert result.returncode == FOUND
    assert json.loads(result.stdout)["findings"][0]["name"] == "unexplained"
