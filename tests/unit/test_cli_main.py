"""Commands report errors as one line and an exit code, fit tables to the terminal, and start fast."""

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
from unit.snapshots import target

if TYPE_CHECKING:
    from collections.abc import Callable

AGENT = Path(cli_main.__file__).parents[2]


@pytest.fixture
def command_that(monkeypatch: pytest.MonkeyPatch) -> Callable[[Exception | int], None]:
    """Return a function that replaces all commands with one that raises or returns the given outcome."""

    def install(outcome: Exception | int) -> None:
        @click.command("targets")
        def command() -> int:
            if isinstance(outcome, int):
                return outcome
            raise outcome

        monkeypatch.setattr(cli_main.LazyGroup, "get_command", lambda _self, _ctx, _name: command)

    return install


@pytest.mark.parametrize(
    ("outcome", "code", "message"),
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
    message: str,
) -> None:
    command_that(outcome)
    assert cli_main.main(["targets"]) == code
    error = capsys.readouterr().err
    assert error.startswith(message)
    assert "Traceback" not in error


def test_interrupt_prints_nothing(
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
def test_invalid_command_line_is_exit_code_2(
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


def test_start_up_imports_no_expensive_modules() -> None:
    done = _python(
        "import sys; from innoscope.cli import main; main.main(['--version']);"
        "import innoscope.cli.commands.targets;"
        "import innoscope.target.discover; print(sorted(set(sys.modules) & "
        "{'pymysql', 'yaml', 'textual', 'rich', 'ssl', 'asyncio',"
        "'innoscope.cli.commands.top', 'innoscope.cli.doctor'}))"
    )
    assert done.stdout.splitlines()[-1] == "[]", done.stderr


def test_thread_inside_the_core_survives_the_exit_of_python() -> None:
    """Check that PyO3 suspends the thread. Otherwise, Python would unwind its stack through Rust frames."""
    done = _python(
        "import threading; from innoscope import _native\n"
        "begun = threading.Barrier(3)\n"
        "def work():\n"
        "    begun.wait()\n"
        "    while True: _native.demangle(['_ZN1aC1Ev'] * 1000)\n"
        "for _ in range(2): threading.Thread(target=work, daemon=True).start()\n"
        "begun.wait()"
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_missing_core_is_reported_with_its_remedy() -> None:
    done = _python(
        "import sys; sys.modules['innoscope._native'] = None; from innoscope.cli import main;"
        "sys.exit(main.main(['stacks']))"
    )
    assert done.returncode == 1
    assert done.stderr.startswith("innoscope: cannot load the Rust core: ")
    assert done.stderr.endswith("\n  make setup\n")


def test_closed_pipe_prints_nothing() -> None:
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
    assert first.split() == f"4242 mysql 5.6.24 3 {target().socket} 3306 /var/lib/mysql symtab".split()
    assert "mysql ?" in second
    assert second.endswith("executable was replaced")


def test_targets_as_json(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(targets, "survey", lambda: ([target()], ()))
    assert cli_main.main(["targets", "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert set(found) == {field.name for field in fields(Target)} - {"chosen"}
    assert found["version"] == [5, 6, 24]


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


def test_tables_fit_the_terminal_and_omit_empty_columns() -> None:
    rows = [("1", "/a/very/long/path/to/somewhere", ""), ("22", "/b", "")]
    lines = list(table(("ID", "PATH", "NOTES"), rows, right=frozenset({"ID"}), width=20))
    assert lines == ["ID  PATH", " 1  /a/very/long/pa…", "22  /b"]
