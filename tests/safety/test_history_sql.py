"""Test that ``innoscope history sql`` checks the files, and that root queries them as their owner."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING, Final

import pytest

from innoscope.common.errors import ExitCode
from innoscope.sampling.sessions.store import HistoryLimits, HistoryStore
from unit.session_samples import START, Clock, batch

if TYPE_CHECKING:
    from pathlib import Path

#: A user without an account.
UID: Final = 64_123
DEADLINE_S: Final = 60
#: A replacement for DuckDB that prints the credentials of the process that loads it.
_FAKE_DUCKDB: Final = """
import re
print(re.findall(r"(?:Uid|Gid|Groups|CapPrm|CapEff|NoNewPrivs):.*", open("/proc/self/status").read()))
raise ImportError
"""
#: A script that runs the command, and replaces each samples file with a pipe once the file has been checked.
_REPLACING: Final = """
import os, sys
from innoscope.cli import history_sql, main
checked = history_sql.history_open
def replacing(table, path):
    descriptor = checked(table, path)
    if table == "samples":
        path.unlink()
        os.mkfifo(path)
    return descriptor
history_sql.history_open = replacing
sys.exit(main.main(sys.argv[1:]))
"""
COUNT: Final = "SELECT count(*) AS n FROM samples"


@pytest.fixture
def history(folder: Path) -> Path:
    """Return a history of two parts, owned by root."""
    history = folder / "history"
    clock = Clock()
    store = HistoryStore(history, HistoryLimits(), clock, clock)
    store.prepare()
    for second in (0, 1):
        store.add("orders", batch(START + second))
        store.close()
    assert len(samples(history)) == 2
    return history


def samples(history: Path) -> list[Path]:
    return sorted(history.glob("*/samples.parquet"))


def give_away(path: Path) -> None:
    for one in (path, *path.rglob("*")):
        os.chown(one, UID, UID, follow_symlinks=False)


def query(history: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "innoscope.cli.main", "history", "sql", "--dir", history, "--json", COUNT],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
        env=os.environ | environment,
    )


def credentials(history: Path, folder: Path) -> str:
    """Return the credentials with which the command loads DuckDB."""
    (folder / "duckdb.py").write_text(_FAKE_DUCKDB)
    return query(history, PYTHONPATH=str(folder)).stdout


def test_root_becomes_the_owner_before_duckdb_is_loaded(history: Path, folder: Path) -> None:
    give_away(history)
    expected = [
        "Uid:" + f"\t{UID}" * 4,
        "Gid:" + "\t65534" * 4,
        "Groups:\t ",
        "CapPrm:\t0000000000000000",
        "CapEff:\t0000000000000000",
        "NoNewPrivs:\t1",
    ]
    assert credentials(history, folder) == f"{expected}\n"


def test_root_becomes_the_owner_of_a_part_in_a_directory_of_root(history: Path, folder: Path) -> None:
    """Give one part in root's directory to another user: in /tmp, for example, any user can create one."""
    give_away(samples(history)[0].parent)
    assert f"Uid:\\t{UID}" in credentials(history, folder)


def test_the_owner_can_query_the_history(history: Path) -> None:
    before = query(history)
    give_away(history)
    after = query(history)
    assert (after.returncode, after.stderr) == (0, "")
    assert after.stdout == before.stdout != ""


@pytest.mark.parametrize("kind", ["pipe", "link", "endless"])
def test_a_file_that_is_not_regular_is_skipped(history: Path, folder: Path, kind: str) -> None:
    path = samples(history)[0]
    expected = query(history).stdout
    shutil.move(path, folder / "moved")
    if kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to(folder / "moved" if kind == "link" else "/dev/zero")
    found = query(history)
    assert found.returncode == 0, found.stderr
    assert found.stderr.startswith(f"note: cannot read {path}: ")
    assert found.stderr.count("\n") == 1
    assert found.stdout != expected


def test_a_file_that_a_pipe_replaces_after_the_check_does_not_block(history: Path) -> None:
    expected = query(history).stdout
    command = [sys.executable, "-c", _REPLACING, "history", "sql", "--dir", str(history), "--json", COUNT]
    found = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    assert all(path.is_fifo() for path in samples(history))
    assert (found.stdout, found.stderr) == (expected, "")


def test_a_history_of_many_hours_needs_no_higher_limit_on_open_files(history: Path) -> None:
    [before] = json.loads(query(history).stdout)
    part = samples(history)[0].parent
    hour = part.name.split(".")[0]
    for number in range(1_000, 1_060):
        shutil.copytree(part, part.with_name(f"{hour}.{number:06}-{number:06}"))
    command = f"ulimit -Sn 100; {sys.executable} -m innoscope.cli.main history sql --dir {history} --json"
    found = subprocess.run(
        ["sh", "-c", f"{command} '{COUNT}'"], capture_output=True, text=True, timeout=DEADLINE_S, check=False
    )
    assert (found.returncode, found.stderr) == (0, "")
    assert json.loads(found.stdout) == [{"n": 31 * before["n"]}]


def test_a_history_without_a_sound_file_is_an_error(history: Path) -> None:
    for path in history.glob("*/*.parquet"):
        path.write_bytes(b"PAR1")
    found = query(history)
    assert found.returncode == ExitCode.BAD_FILE
    assert "truncated file" in found.stderr
