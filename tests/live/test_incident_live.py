"""Test that `diff` compares a dump of a calm server with a saved stall, and shows the wait."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

from innoscope.diagnose.incident import files
from safety.command import innoscope
from scale import long
from servers import Server
from workloads import Crowd, Idle, RowLock

if TYPE_CHECKING:
    from pathlib import Path

_FOUND, _DIFFERENT = 18, 19


def test_diff_of_a_calm_dump_and_a_stall_shows_the_wait(tmp_path: Path) -> None:
    with Server("mysql-5.6.24") as server:
        with Idle(server, 10):
            calm, again = _dump(server, tmp_path / "calm.json"), _dump(server, tmp_path / "again.json")
        with RowLock(server, 20):
            options = ("--pid", server.pid, "-u", "root", "--seconds", 2, "--no-probes")
            saved = innoscope("diagnose", *options, "--save", tmp_path)
            waiting = _dump(server, tmp_path / "waiting.json")
    assert saved.returncode == _FOUND, saved.stderr
    [file] = tmp_path.glob("*.innoscope")
    assert re.fullmatch(r"mysql-\d+-\d{8}T\d{6}Z\.innoscope", file.name)
    assert f"saved to {file} ({file.stat().st_size:,} bytes)" in saved.stdout

    quiet = innoscope("diff", calm, again)
    assert (quiet.returncode, "No significant difference." in quiet.stdout) == (0, True), quiet.stdout
    for stall in (file, waiting):
        done = innoscope("diff", calm, stall, "--json")
        assert done.returncode == _DIFFERENT, done.stderr
        record = json.loads(done.stdout)
        assert (record["waits"][0]["wait"], record["waits"][0]["clients"]) == ("row_lock", True)
        assert "lock_wait_suspend_thread" in record["stacks"][0]["functions"]


@long("tests/live/test_memory.py reads the same variables")
def test_variables_of_a_full_server_are_read_from_memory(tmp_path: Path) -> None:
    path = tmp_path / "full.innoscope"
    with Server("mysql-5.6.24") as server:
        server.sql("SET GLOBAL max_connections = 10")
        with Crowd(server, 11, "mysql"):
            saved = innoscope(
                "diagnose", "--pid", server.pid, "-u", "root", "--seconds", 4, "--no-probes", "--save", path
            )
    assert saved.returncode == _FOUND, saved.stderr
    capture = files.load(path)
    assert (capture.status, capture.missing["status"].words) == (None, "too many connections")
    assert capture.missing["variables"].words == "InnoDB's only, from memory: too many connections"
    assert int(capture.variables["innodb_buffer_pool_size"]) > 0


def _dump(server: Server, path: Path) -> Path:
    options = ("--pid", server.pid, "--count", 4, "--interval", 0.2)
    done = innoscope("stacks", *options, "--json", "--output", path)
    assert done.returncode == 0, done.stderr
    return path
