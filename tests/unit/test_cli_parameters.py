"""Test conventions of all commands: units of time, option spellings, completion, suggestions, exit codes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import pytest
from click.shell_completion import ShellComplete
from click.testing import CliRunner

from innoscope.cli import common
from innoscope.cli.main import COMMANDS, cli, main
from innoscope.cli.parameters import Duration, Option, did_you_mean
from innoscope.common import errors
from innoscope.common.errors import ExitCode, InnoscopeError
from unit.snapshots import target

if TYPE_CHECKING:
    from collections.abc import Iterator

DOCS = Path(__file__).parents[2] / "docs"


def commands(group: click.Group = cli, path: tuple[str, ...] = ()) -> Iterator[tuple[str, click.Command]]:
    """Yield every command with the words that invoke it."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        yield " ".join((*path, name)), command
        if isinstance(command, click.Group):
            yield from commands(command, (*path, name))


ALL = dict(commands())


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("10", 10.0), ("1.5", 1.5), ("250ms", 0.25), ("90s", 90.0), ("10m", 600.0), ("1.5h", 5400.0),
        (" 1d ", 86400.0), ("366d", 31622400.0),
    ],
)  # fmt: skip
def test_durations_are_parsed(text: str, seconds: float) -> None:
    assert Duration().convert(text, None, None) == seconds


@pytest.mark.parametrize(
    ("text", "why"),
    [
        *((text, "is not a duration") for text in ("", "-1m", "10 m", "1w", "²s", "inf", "nan", "1e3")),
        *((text, "is out of range: 0.1s to 10m") for text in ("0s", "11m", "999999999d")),
    ],
)  # fmt: skip
def test_invalid_durations_are_rejected(text: str, why: str) -> None:
    with pytest.raises(click.BadParameter, match=re.escape(why)):
        Duration(0.1, 600).convert(text, None, None)


def test_every_time_has_the_same_type() -> None:
    """Check that all options for times are Durations, and that only budgets are plain numbers."""
    plain = {
        f"{words} {parameter.opts[-1]}"
        for words, command in ALL.items()
        for parameter in command.params
        if isinstance(parameter.type, click.types.FloatParamType | click.types.FloatRange)
    }
    assert plain == {"probes measure --budget", "trace --budget", "latency --budget", "sensor --budget"}


def test_seconds_and_duration_are_one_option() -> None:
    spelled = [
        set(parameter.opts)
        for command in ALL.values()
        for parameter in command.params
        if {"--seconds", "--duration"} & {*parameter.opts}
    ]
    assert len(spelled) == 8
    assert all(each == {"-s", "--seconds", "--duration"} for each in spelled)


def test_a_short_option_means_the_same_in_all_commands() -> None:
    """Check all short options except ``-a``, which stands for --all, --arg or --agent."""
    meanings: dict[str, set[str]] = {}
    for command in ALL.values():
        for parameter in command.params:
            short = [name for name in parameter.opts if not name.startswith("--")]
            for name in short:
                meanings.setdefault(name, set()).add(parameter.opts[-1])
    del meanings["-a"]
    assert {name: words for name, words in meanings.items() if name.startswith("-") and len(words) > 1} == {}


def test_servers_are_named_as_in_mysql() -> None:
    names = {
        name: {*parameter.opts}
        for words, command in ALL.items()
        if words not in ("sensor", "agent")
        for parameter in command.params
        for name in parameter.opts
    }
    assert {"-S", "--socket"} <= names["--socket"]
    assert {"-P", "--port"} <= names["--port"]
    assert {"-p", "--pid"} <= names["--pid"]
    assert {"-u", "--user"} <= names["--user"]


@pytest.mark.parametrize("daemon", ["agent", "sensor"])
def test_daemons_have_the_same_options_for_logs_and_sockets(daemon: str) -> None:
    names = {name for parameter in ALL[daemon].params for name in parameter.opts}
    assert {"--log-level", "--log.level", "--log-format", "--log.format", "--sensor-socket"} <= names


def test_older_spellings_work_and_are_not_shown() -> None:
    @click.command()
    @click.option("--sensor-socket", "path", cls=Option, formerly=["--socket"], default="/d")
    def command(path: str) -> None:
        click.echo(path)

    runner = CliRunner()
    assert runner.invoke(command, ["--socket", "/a"]).output == "/a\n"
    assert runner.invoke(command, ["--sensor-socket", "/b"]).output == "/b\n"
    assert runner.invoke(command).output == "/d\n"
    assert " --socket" not in runner.invoke(command, ["--help"]).output


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (["stack"], "unknown command 'stack': did you mean 'stacks'?"),
        (["diagnos"], "did you mean 'diagnose'?"),
        (["probes", "mesure"], "unknown command 'mesure': did you mean 'measure'?"),
        (["toggle", "lst"], "did you mean 'list'?"),
        (["symbols", "exprt"], "did you mean 'export'?"),
        (["stacks", "--wait", "row_lok"], "did you mean 'row_lock'?"),
        (["toggle", "show", "read_ahed"], "did you mean 'read_ahead'?"),
    ],
)
def test_nearly_right_words_get_a_suggestion(
    line: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(line) == ExitCode.USAGE
    assert says in " ".join(capsys.readouterr().err.split())


def test_no_suggestion_for_a_dissimilar_word() -> None:
    assert did_you_mean("lunch", COMMANDS) == ""


def completed(words: list[str], incomplete: str) -> dict[str, str | None]:
    """Return the completions that a shell would offer, with their descriptions."""
    found = ShellComplete(cli, {}, "innoscope", "_INNOSCOPE_COMPLETE").get_completions(words, incomplete)
    return {item.value: item.help for item in found}


def test_completion_of_pids(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(common, "find_all", lambda: [target(), target(pid=7)])
    assert completed(["stacks", "--pid"], "") == {"4242": "mysql 5.6.24", "7": "mysql 5.6.24"}
    assert completed(["toggle", "list", "-p"], "4") == {"4242": "mysql 5.6.24"}


def test_completion_offers_nothing_where_servers_cannot_be_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> Any:
        raise InnoscopeError("servers.toml is damaged")

    monkeypatch.setattr(common, "find_all", fail)
    assert completed(["stacks", "--pid"], "") == {}


@pytest.mark.parametrize(
    ("words", "incomplete", "offered"),
    [
        (["toggle", "set"], "read_", "read_ahead"),
        (["toggle", "undo"], "read_", "read_ahead"),
        (["stacks", "--wait"], "row", "row_lock"),
        (["profile", "-w"], "fsync", "fsync_redo"),
        (["watch", "--trigger"], "fin", "finding:flushing_storm"),
        (["trace"], "redo_", "redo_write"),
        (["probes", "list", "--family"], "fl", "flush"),
        (["sensor", "--family"], "fl", "flush"),
        ([], "dia", "diagnose"),
    ],
)
def test_completion(words: list[str], incomplete: str, offered: str) -> None:
    found = completed(words, incomplete)
    assert offered in found
    assert all(word.startswith(incomplete) for word in found)


@pytest.mark.parametrize("words", sorted(ALL))
def test_every_help_has_examples(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*words.split(), "--help"]) == 0
    shown = capsys.readouterr().out
    assert "Examples:" in shown
    assert f"innoscope {words}" in shown.partition("Examples:")[2]


def test_help_lists_the_most_used_commands_first() -> None:
    assert list(COMMANDS)[:5] == ["diagnose", "stacks", "top", "watch", "profile"]


def test_the_documentation_has_all_exit_codes() -> None:
    table = (DOCS / "cli.md").read_text().partition("## Exit codes")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (\d+) \| (.+) \|$", table, re.M)
    assert [(int(code), meaning) for code, meaning in rows] == [(code, code.meaning) for code in ExitCode]


def test_every_error_has_one_of_these_codes() -> None:
    kinds = [InnoscopeError]
    for kind in kinds:
        kinds += kind.__subclasses__()
    assert {errors.NoTarget, errors.Traced} <= {*kinds}
    ours = [kind for kind in kinds if kind.__module__.startswith("innoscope")]
    assert all(isinstance(kind.exit_code, ExitCode) for kind in ours)
