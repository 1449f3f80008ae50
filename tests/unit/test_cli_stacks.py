"""Test `innoscope stacks` with a fake snapshot engine."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from innoscope.cli import open_server
from innoscope.cli.commands import stacks
from innoscope.cli.main import main
from innoscope.common.errors import NoSuchProcess
from unit.snapshots import mixed, target

if TYPE_CHECKING:
    from pathlib import Path


class FakeEngine:
    """A fake snapshot engine that returns six threads each time, until the server exits.

    The server exits after ``ends_after`` snapshots.
    """

    made: list[dict[str, Any]] = []  # noqa: RUF012
    ends_after = 99

    def __init__(self, _: Any, **options: Any) -> None:
        self.snapshots = 0
        self.made.append(options)

    def take_snapshot(self) -> Any:
        if self.snapshots == self.ends_after:
            raise NoSuchProcess("process 4242 has exited")
        self.snapshots += 1
        return mixed()


@pytest.fixture(autouse=True)
def _fake(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(open_server, "Engine", FakeEngine)
    monkeypatch.setattr(FakeEngine, "made", [])
    monkeypatch.setattr(FakeEngine, "ends_after", 99)
    monkeypatch.setattr(stacks, "find_one", lambda pid, socket, port: target())
    monkeypatch.delenv("DEBUGINFOD_URLS", raising=False)


def run(*arguments: str) -> int:
    return main(["stacks", *arguments])


def test_list_is_the_default(capsys: pytest.CaptureFixture[str]) -> None:
    assert run() == 0
    assert capsys.readouterr().out.splitlines()[0].startswith("6 threads in 4.8 ms: 3 idle")


@pytest.mark.parametrize("options", [["--all"], ["--wait", "idle"], ["--grep", "poll"]])
def test_idle_stacks_are_shown_when_asked_for(options: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run() == 0
    shown = capsys.readouterr().out
    assert shown.endswith("\n3 idle hidden, --all shows them\n")
    assert "do_command" in shown
    assert "my_net_read" not in shown

    assert run(*options) == 0
    shown = capsys.readouterr().out
    assert "hidden" not in shown
    assert "vio_io_wait,my_net_read" in shown


@pytest.mark.parametrize("option", ["--full", "--kernel"])
def test_library_functions_are_shown_when_asked_for(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run() == 0
    assert "pthread_cond_wait" not in capsys.readouterr().out
    assert run(option) == 0
    assert "pthread_cond_wait,os_event_wait_low" in capsys.readouterr().out


def test_json_has_one_line_per_snapshot(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--json", "--count", "2", "--interval", "0.01", "--wait", "row-lock") == 0

    documents = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [len(document["threads"]) for document in documents] == [2, 2]


def test_options_reach_the_engine(tmp_path: Path) -> None:
    run("--method", "bpf", "--inlines", "--kernel", "--debug-dir", str(tmp_path))

    assert FakeEngine.made == [
        {
            "method": "bpf",
            "inlines": True,
            "kernel": True,
            "debug_files": None,
            "debug_dirs": (str(tmp_path),),
            "most_bytes": None,
        }
    ]


def test_output_goes_to_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--format", "folded", "--output", str(tmp_path / "x")) == 0
    assert (tmp_path / "x").read_text().startswith("start_thread;")
    assert capsys.readouterr().out == ""


def test_server_that_ends_leaves_the_snapshots_so_far(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    arguments = ("--count", "5", "--interval", "0.01", "--output", str(tmp_path / "x"))

    monkeypatch.setattr(FakeEngine, "ends_after", 0)
    assert run(*arguments) == 4
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setattr(FakeEngine, "ends_after", 2)
    assert run(*arguments) == 4
    assert "2 of 5 snapshots" in (tmp_path / "x").read_text()
    assert capsys.readouterr().err == "innoscope: process 4242 has exited\n" * 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--wait", "lunch"], "unknown class 'lunch'"),
        (["--grep", "("], "not a regular expression"),
        (["--json", "--format", "text"], "cannot use --json"),
        (["--by", "wait", "--json"], "cannot use --by with --format json"),
        (["--interval", "2"], "--interval requires --count"),
    ],
)
def test_contradictory_options_are_refused(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*arguments) == 2
    assert message in capsys.readouterr().err
