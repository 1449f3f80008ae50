"""`innoscope diagnose FILE` shows an incident file, and rejects options that need a live server."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from innoscope.cli.main import main
from innoscope.diagnose.incident import files
from innoscope.diagnose.incident.capture import make_capture
from innoscope.diagnose.incident.server_facts import fetch
from unit.captures import capture, evidence
from unit.sql_connection import FakeConnection

if TYPE_CHECKING:
    from pathlib import Path

USAGE = 2


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "a.innoscope"
    files.save(path, capture(before=evidence({"idle": 3}), trigger="threads_running >= 20 (31)"))
    return path


def test_findings_name_the_file_its_server_and_its_trigger(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["diagnose", str(file)]) == 18
    lines = capsys.readouterr().out.splitlines()
    assert (
        lines[0]
        == f"from {file}: observed 1970-01-01 00:16:40 UTC on db1, captured by root with innoscope 0.1.0"
    )
    assert lines[1] == "captured because of: threads_running >= 20 (31)"
    assert lines[2] == f"includes 10 s before it: innoscope diff {file}"
    assert lines[3] == "without status: root lacks a privilege"
    assert "1.! 10 threads wait for row locks  [row_lock_convoy, 88]" in lines


def test_findings_of_other_rules_at_capture_time_are_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "a"
    files.save(path, capture(verdict={"findings": [{"name": "spinning"}]}))
    assert main(["diagnose", str(path), "--json"]) == 18
    record = json.loads(capsys.readouterr().out)
    assert record["file"]["findings_then"] == ["spinning"]
    assert record["findings"][0]["name"] == "row_lock_convoy"
    main(["diagnose", str(path)])
    assert "findings at that time, by other rules: spinning" in capsys.readouterr().out


def test_file_without_findings_is_exit_code_0(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files.save(tmp_path / "a", capture(evidence=evidence({"idle": 3}), verdict={}))
    assert main(["diagnose", str(tmp_path / "a")]) == 0
    assert "Nothing wrong was found" in capsys.readouterr().out


def test_impossible_time_is_shown_as_unknown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    observed = replace(evidence({"idle": 3}), begun=1e300, ended=1e300)
    files.save(tmp_path / "a", capture(evidence=observed))
    main(["diagnose", str(tmp_path / "a")])
    assert "observed at an unknown time" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("part", "line"),
    [
        (
            "folded",
            "row_lock;do_command;row_search_for_mysql;lock_wait_suspend_thread;os_event_wait_low;futex 100",
        ),
        ("stacks", "    10.0  connection row_lock  futex,os_event_wait_low,lock_wait_suspend_thread,"),
        ("metrics", "connections  13 … 13"),
        ("status", "Trx id counter 7"),
        ("variables", "innodb_buffer_pool_size  134217728"),
    ],
)
def test_each_part_can_be_shown(part: str, line: str, file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diagnose", str(file), "--show", part]) == 0
    assert any(found.startswith(line) for found in capsys.readouterr().out.splitlines())


def test_missing_part_is_shown_with_its_reason(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files.save(tmp_path / "a", capture(status=None))
    assert main(["diagnose", str(tmp_path / "a"), "--show", "status"]) == 0
    assert capsys.readouterr().out == "not in the file: root lacks a privilege\n"


@pytest.mark.parametrize(
    "options",
    [
        ["--pid", "1"], ["--socket", "/s"], ["--port", "3306"], ["--seconds", "5"], ["--no-sql"],
        ["--no-probes"], ["-u", "root"], ["--defaults-file", "/f"], ["--save", "/f"],
    ],
)  # fmt: skip
def test_options_for_a_live_server_are_refused(
    options: list[str], file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["diagnose", str(file), *options]) == USAGE
    said = capsys.readouterr().err
    assert f"with the file {file}: it requires a live server" in said


def test_contradictory_options_and_missing_files_are_refused(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["diagnose", "--show", "status"]) == USAGE
    assert "--show requires an incident file" in capsys.readouterr().err
    assert main(["diagnose", str(file), "--show", "status", "--json"]) == USAGE
    assert "zcat" in capsys.readouterr().err
    assert main(["diagnose", str(file.with_name("none"))]) == 9


def test_inconsistent_evidence_is_a_damaged_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files.save(tmp_path / "a", capture(evidence=replace(evidence({"row_lock": 10}), server={})))
    assert main(["diagnose", str(tmp_path / "a")]) == 9
    assert "invalid evidence" in capsys.readouterr().err


def test_status_is_not_queried_while_many_threads_wait_for_row_locks() -> None:
    columns = ("Variable_name", "Value")
    connection = FakeConnection({"SHOW GLOBAL VARIABLES": (columns, [("max_connections", "151")])})

    fetched = fetch(lambda _: connection, 301)  # type: ignore[arg-type, return-value]

    assert connection.statements == ["SHOW GLOBAL VARIABLES"]
    assert connection.closed
    assert fetched.variables == {"max_connections": "151"}
    assert (
        fetched.missing["status"].words
        == "not queried: it blocks all row locks, and 301 threads wait for one"
    )
    found, verdict = make_capture(evidence({"row_lock": 10}), fetched, trigger="x")
    assert found.status is None
    assert [one["name"] for one in found.verdict["findings"]] == [one.name for one in verdict.findings]
