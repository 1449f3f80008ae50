"""`innoscope diagnose FILE`: what is printed of a file, and what is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from innoscope.cli.main import main
from innoscope.diagnose.incident import files
from innoscope.diagnose.incident.capture import make_capture
from innoscope.diagnose.incident.server_facts import fetch
from unit.capturing import capture, evidence

if TYPE_CHECKING:
    from pathlib import Path

USAGE = 2


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "a.innoscope"
    files.save(path, capture(before=evidence({"idle": 3}), trigger="threads_running >= 20 (31)"))
    return path


def test_the_findings_say_where_they_are_from(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
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


def test_what_other_rules_said_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "a"
    files.save(path, capture(verdict={"findings": [{"name": "spinning"}]}))
    assert main(["diagnose", str(path), "--json"]) == 18
    record = json.loads(capsys.readouterr().out)
    assert record["file"]["findings_then"] == ["spinning"]
    assert record["findings"][0]["name"] == "row_lock_convoy"
    main(["diagnose", str(path)])
    assert "findings at that time, by other rules: spinning" in capsys.readouterr().out


def test_nothing_wrong_is_status_0(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files.save(tmp_path / "a", capture(evidence=evidence({"idle": 3}), verdict={}))
    assert main(["diagnose", str(tmp_path / "a")]) == 0
    assert "Nothing wrong was found" in capsys.readouterr().out


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
def test_each_part_is_to_be_had(part: str, line: str, file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diagnose", str(file), "--show", part]) == 0
    assert any(found.startswith(line) for found in capsys.readouterr().out.splitlines())


def test_a_part_that_is_not_there_says_why(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
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
def test_what_is_for_a_server_is_refused(
    options: list[str], file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["diagnose", str(file), *options]) == USAGE
    said = capsys.readouterr().err
    assert f"is for a live server, not for the file {file}" in said


def test_other_wrong_command_lines(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diagnose", "--show", "status"]) == USAGE
    assert "--show is for an incident file" in capsys.readouterr().err
    assert main(["diagnose", str(file), "--show", "status", "--json"]) == USAGE
    assert "zcat" in capsys.readouterr().err
    assert main(["diagnose", str(file.with_name("none"))]) == 9


def test_evidence_that_makes_no_sense_is_a_damaged_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    senseless = replace(evidence({"row_lock": 10}), server={})
    files.save(tmp_path / "a", capture(evidence=senseless))
    assert main(["diagnose", str(tmp_path / "a")]) == 9
    assert "invalid evidence" in capsys.readouterr().err


def test_a_crowd_is_not_held_up_for_the_status() -> None:
    asked: list[str] = []

    class Connection:
        user = "root"

        def cursor(self) -> Connection:
            return self

        def __enter__(self) -> Connection:
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def execute(self, statement: str) -> None:
            asked.append(statement)

        def fetchall(self) -> list[tuple[str, ...]]:
            return [("max_connections", "151")]

        def abandon(self) -> None:
            asked.append("closed")

    fetched = fetch(lambda _: Connection(), 301)  # type: ignore[arg-type, return-value]

    assert asked == ["SHOW GLOBAL VARIABLES", "closed"]
    assert fetched.variables == {"max_connections": "151"}
    assert (
        fetched.missing["status"].words
        == "not queried: it blocks all row locks, and 301 threads wait for one"
    )
    found, verdict = make_capture(evidence({"row_lock": 10}), fetched, trigger="x")
    assert found.status is None
    assert [one["name"] for one in found.verdict["findings"]] == [one.name for one in verdict.findings]
