"""Errors become one line and an exit code, tables fit the terminal, start-up stays light."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import pytest

from innoscope.cli import main as cli_main
from innoscope.cli.commands import targets
from innoscope.cli.common import table
from innoscope.common.errors import ExitCode, InnoscopeError, NoRights
from innoscope.target.model import Target

if TYPE_CHECKING:
    from collections.abc import Callable

AGENT = Path(cli_main.__file__).parents[2]


def target(**changes: Any) -> Target:
    fields: dict[str, Any] = {
        "pid": 42, "start_time": 1, "flavour": "mysql", "version": (9, 7, 4), "version_text": "9.7.4",
        "version_from": "memory", "executable": "/usr/sbin/mysqld", "deleted": False, "build_id": "ab",
        "socket": "/run/my.sock", "port": 3306, "datadir": "/data", "threads": 12, "root": "/",
        "container": None, "symbols": "symtab",
    }  # fmt: skip
    return Target(**(fields | changes))


@pytest.fixture
def command_that(monkeypatch: pytest.MonkeyPatch) -> Callable[[Exception | int], None]:
    """Put a command that raises or returns something in the place of ``targets``."""

    def install(outcome: Exception | int) -> None:
        @click.command("targets")
        def command() -> int:
            if isinstance(outcome, int):
                return outcome
            raise outcome

        monkeypatch.setattr(cli_main.LazyGroup, "get_command", lambda _self, _ctx, _name: command)

    return install


@pytest.mark.parametrize(
    ("outcome", "code", "says"),
    [
        (NoRights("no right", remedy="sudo"), 6, "innoscope: no right\n  sudo\n"),
        (InnoscopeError("odd", remedy="one\ntwo"), 1, "innoscope: odd\n  one\n  two\n"),
        (InnoscopeError("odd"), 1, "innoscope: odd\n"),
        (ValueError("boom"), 1, "innoscope: unexpected ValueError: boom\n  run with --debug"),
        (10, 10, ""),
        (0, 0, ""),
    ],
)
def test_outcomes_become_exit_codes(
    command_that: Callable[[Exception | int], None],
    capsys: pytest.CaptureFixture[str],
    outcome: Exception | int,
    code: int,
    says: str,
) -> None:
    command_that(outcome)
    assert cli_main.main(["targets"]) == code
    error = capsys.readouterr().err
    assert error.startswith(says)
    assert "Traceback" not in error


def test_an_interrupt_is_quiet(
    command_that: Callable[[Any], None], capsys: pytest.CaptureFixture[str]
) -> None:
    command_that(KeyboardInterrupt())
    assert cli_main.main(["targets"]) == 130
    assert capsys.readouterr().err.strip() == ""


def test_debug_prints_the_traceback(
    command_that: Callable[[Exception | int], None], capsys: pytest.CaptureFixture[str]
) -> None:
    command_that(ValueError("boom"))
    assert cli_main.main(["--debug", "targets"]) == 1
    assert "Traceback" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["--nonsense"], ["nonsense"], ["targets", "--nonsense"]])
def test_a_wrong_command_line_is_exit_code_2(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli_main.main(arguments) == 2
    assert "--help" in capsys.readouterr().err


def test_help_lists_all_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli_main.main(["--help"]) == 0
    shown = capsys.readouterr().out
    assert all(f"  {name}" in shown for name in cli_main.COMMANDS)


def _python(code: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": str(AGENT)}
    return subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60, check=False
    )


def test_start_up_imports_nothing_heavy() -> None:
    done = _python(
        "import sys; from innoscope.cli import main; main.main(['--version']);"
        "import innoscope.cli.commands.targets;"
        "import innoscope.target.discover; print(sorted(set(sys.modules) & "
        "{'pymysql', 'yaml', 'textual', 'rich', 'ssl', 'asyncio',"
        "'innoscope.cli.commands.top', 'innoscope.cli.doctor'}))"
    )
    assert done.stdout.splitlines()[-1] == "[]", done.stderr


def test_a_thread_inside_the_core_survives_the_end_of_python() -> None:
    """Python ends before it; PyO3 then lets the thread hang, where Python would unwind it through Rust."""
    done = _python(
        "import threading, time; from innoscope import _native\n"
        "def work():\n"
        "    while True: _native.demangle(['_ZN1aC1Ev'] * 1000)\n"
        "for _ in range(2): threading.Thread(target=work, daemon=True).start()\n"
        "time.sleep(0.2)"
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_a_core_that_is_not_built_is_said() -> None:
    done = _python(
        "import sys; sys.modules['innoscope._native'] = None; from innoscope.cli import main;"
        "sys.exit(main.main(['stacks']))"
    )
    assert done.returncode == 1
    assert done.stderr.startswith("innoscope: the native core cannot be loaded: ")
    assert done.stderr.endswith("\n  make setup\n")


def test_a_closed_pipe_is_quiet() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as closed:
        environment = os.environ | {"PYTHONPATH": str(AGENT)}
        done = subprocess.run(
            [sys.executable, "-m", "innoscope.cli.main", "--help"],
            env=environment, stdout=closed, stderr=subprocess.PIPE, text=True, timeout=60, check=False,
        )  # fmt: skip
    assert (done.returncode, done.stderr) == (ExitCode.BROKEN_PIPE, "")


def test_targets_as_a_table(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(targets, "survey", lambda: ([target(), target(pid=7, version=(), deleted=True)], ()))
    assert cli_main.main(["targets"]) == 0
    heading, first, second = capsys.readouterr().out.splitlines()
    assert heading.split() == ["PID", "SERVER", "THREADS", "SOCKET", "PORT", "DATADIR", "SYMBOLS", "NOTES"]
    assert first.split() == ["42", "mysql", "9.7.4", "12", "/run/my.sock", "3306", "/data", "symtab"]
    assert "mysql ?" in second
    assert second.endswith("executable was replaced")


def test_targets_as_json(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(targets, "survey", lambda: ([target()], ()))
    assert cli_main.main(["targets", "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert set(found) == {field.name for field in fields(Target)} - {"chosen"}
    assert found["version"] == [9, 7, 4]


def test_no_targets_is_exit_code_3(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(targets, "survey", lambda: ([], ()))
    assert cli_main.main(["targets", "--json"]) == 3
    captured = capsys.readouterr()
    assert json.loads(captured.out) == []
    assert "no mysqld or mariadbd" in captured.err


def test_notes_name_containers_namespaces_and_chroots() -> None:
    assert targets.notes(target(container="0123456789ab")) == ["container 0123456789ab"]
    assert targets.notes(target(container="mnt,pid,user")) == ["own namespaces: mnt,pid,user"]
    assert targets.notes(target(root="/srv/sid")) == ["chroot /srv/sid"]
    assert targets.notes(target()) == []


def test_tables_are_cut_to_the_terminal_and_drop_empty_columns() -> None:
    rows = [("1", "/a/very/long/path/to/somewhere", ""), ("22", "/b", "")]
    lines = list(table(("ID", "PATH", "NOTES"), rows, right=frozenset({"ID"}), width=20))
    assert lines == ["ID  PATH", " 1  /a/very/long/pa…", "22  /b"]
