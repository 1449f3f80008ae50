"""Test the output, prompts and exit codes of `innoscope toggle` with a fake toggle engine."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from innoscope.cli.main import GlobalOptions, cli, main
from innoscope.cli.toggle_text import _change
from innoscope.common.versions import VersionRange
from innoscope.target import process_users
from innoscope.toggles import catalog, engine
from innoscope.toggles.journal_format import JournalEntry, ServerId
from innoscope.toggles.model import (
    Assignment,
    Backend,
    ChangePlan,
    ChangeRefused,
    ChangeStep,
    Domain,
    NotOnThisServer,
    Risk,
    Toggle,
    ToggledVariable,
    ToggleGeneration,
    ToggleVerdict,
)
from unit.snapshots import target

if TYPE_CHECKING:
    from collections.abc import Iterable

    from innoscope.target.credentials import LoginOptions
    from innoscope.target.model import Target
    from innoscope.toggles.model import Raw

NEVER = "it stops checkpoints"
BACKEND = Backend(
    "sql", (Assignment(ToggledVariable("innodb_read_ahead_threshold")),), note="applies at once"
)
GENERATION = ToggleGeneration("mysql", VersionRange.parse("5.6+"), (BACKEND,), never={"memory": NEVER})
READ_AHEAD = Toggle(
    "read_ahead", "Linear and random read-ahead", "Fetches whole extents.", Risk.CAREFUL,
    Domain(("on", "off")), (GENERATION,), also="nothing else", undo="pages that were read",
)  # fmt: skip
DURABILITY = replace(READ_AHEAD, name="durability", title="Redo at commit", risk=Risk.DANGEROUS)
DEADLOCK = replace(READ_AHEAD, name="deadlock_detect", title="Deadlock search", generations=())
TOGGLES = {toggle.name: toggle for toggle in (READ_AHEAD, DURABILITY, DEADLOCK)}

TARGET = target()
SERVER = ServerId(4242, 1, "boot", "ab", "mysql", (5, 6, 24), "/run/my.sock")
STEP = ChangeStep("innodb_read_ahead_threshold", 56, 0)
FLAG = ChangeStep("srv_flag", 0, 1, 0x1F6B2A8, 8, "unsigned", "debug information")
ENTRY = JournalEntry(
    "c7f1", 1000.0, "root (alice)", None, "read_ahead", "off", "sql", SERVER, (STEP,), outcome="done"
)


class Engine:
    """A fake toggle engine that records its calls, and returns or raises what the test has set."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.verdicts: tuple[ToggleVerdict, ...] = (
            ToggleVerdict("identity", True),
            ToggleVerdict("range", True),
        )
        self.changes: dict[str, Any] = {}
        self.entries: list[JournalEntry] = [ENTRY]

    def plan(self, target: Target, toggle_name: str, value: str, **how: Any) -> ChangePlan:
        self.calls.append(("plan", {"name": toggle_name, "value": value, **how}))
        toggle = TOGGLES[toggle_name]
        if not toggle.generations:
            raise NotOnThisServer("deadlock_detect: not before 5.7", remedy="thread_concurrency")
        made = ChangePlan(toggle, value, BACKEND, (STEP,), self.verdicts, warnings=("a warning",))
        return replace(made, **self.changes)

    def apply(self, target: Target, plan: ChangePlan, **how: Any) -> JournalEntry:
        self.calls.append(("apply", {"name": plan.toggle.name, **how}))
        until = None if how["seconds"] is None else time.time() + how["seconds"]
        return replace(ENTRY, toggle=plan.toggle.name, value=plan.value, until=until, steps=plan.steps)

    def undo(self, target: Target | None, which: str | None, **how: Any) -> JournalEntry:
        self.calls.append(("undo", {"target": target, "which": which, **how}))
        return replace(ENTRY, outcome="undone", undone_by="c7f2")

    def history(self, target: Target | None = None) -> list[JournalEntry]:
        self.calls.append(("history", {"target": target}))
        return self.entries

    def values(self, target: Target, toggles: Iterable[Toggle], account: LoginOptions) -> dict[str, str]:
        return {toggle.name: "on" for toggle in toggles if toggle.name == "read_ahead"}

    @property
    def applied(self) -> list[dict[str, Any]]:
        return [how for name, how in self.calls if name == "apply"]


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Engine:
    fake = Engine()
    for name in ("plan", "apply", "undo", "history", "values"):
        monkeypatch.setattr(engine, name, getattr(fake, name))

    def generation(toggle: Toggle, flavour: str, version: tuple[int, ...]) -> ToggleGeneration:
        if not toggle.generations:
            raise NotOnThisServer(f"{toggle.name}: not before 5.7")
        return toggle.generations[0]

    monkeypatch.setattr(catalog, "load", lambda path=None: TOGGLES)
    monkeypatch.setattr(catalog, "generation", generation)
    monkeypatch.setattr(catalog, "allowed", lambda backend, toggle: "on, off" if toggle.domain else "")
    monkeypatch.setattr("innoscope.cli.commands.toggle.find_one", lambda *_, **__: TARGET)
    monkeypatch.setattr(process_users, "current_user", lambda _: "root (alice)")
    return fake


def _typing(
    monkeypatch: pytest.MonkeyPatch, *arguments: str, answer: str
) -> tuple[str, BaseException | None]:
    """Run the command on a terminal where ``answer`` is typed; return its output and its exception."""
    runner = CliRunner()
    for module in ("common", "commands.toggle"):
        monkeypatch.setattr(f"innoscope.cli.{module}.on_terminal", lambda: True)
    result = runner.invoke(cli, ["toggle", *arguments], input=answer + "\n", obj=GlobalOptions())
    return result.output, result.exception


def test_list_shows_value_backend_and_risk(fake: Engine, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["toggle", "list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "mysql 5.6.24, pid 4242"
    assert lines[1].split()[:2] == ["TOGGLE", "NOW"]
    assert lines[2].split()[:6] == ["read_ahead", "on", "on,", "off", "sql", "careful"]
    assert lines[3].split()[1] == "?", "no backend could read it"
    assert lines[4].split()[:2] == ["deadlock_detect", "–"]
    assert "not before 5.7" in lines[4]


def test_list_as_json(fake: Engine, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["toggle", "list", "--json"]) == 0
    first, *_, last = json.loads(capsys.readouterr().out)
    assert (first["now"], first["risk"], first["never"]) == ("on", "careful", {"memory": NEVER})
    assert first["ways"] == [
        {"kind": "sql", "settings": ["innodb_read_ahead_threshold"], "note": "applies at once"}
    ]
    assert last["why_not"] == "deadlock_detect: not before 5.7"


def test_show_describes_one_toggle(fake: Engine, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["toggle", "show", "read_ahead"]) == 0
    output = capsys.readouterr().out
    for words in ("Fetches whole extents.", "nothing else", "pages that were read", "now       on", NEVER):
        assert words in output
    assert main(["toggle", "show", "deadlock_detect"]) == 0
    assert "not before 5.7" in capsys.readouterr().out
    assert main(["toggle", "show", "reed_ahead"]) == 2
    assert "did you mean 'read_ahead'?" in capsys.readouterr().err
    assert main(["toggle", "show", "lunch"]) == 2
    assert "read_ahead, durability" in capsys.readouterr().err


def test_plan_shows_settings_checks_and_undo(fake: Engine, capsys: pytest.CaptureFixture[str]) -> None:
    fake.changes = {
        "steps": (FLAG,),
        "backend": replace(BACKEND, kind="memory"),
        "passed": (("sql", "no login"),),
    }
    assert main(["toggle", "plan", "read_ahead", "off", "--backend", "memory", "-u", "dba"]) == 0
    output = capsys.readouterr().out
    assert "read_ahead → off, by memory" in output
    assert "srv_flag: 0 → 1, 8 bytes unsigned at 0x1f6b2a8 (from debug information)" in output
    for words in ("sql: no login", "nothing else", "applies at once", "a warning", "2 of 2 passed"):
        assert words in output
    assert "innoscope toggle undo read_ahead; pages that were read" in output
    [(_, how)] = fake.calls
    assert how["backends"] == ["memory"]
    assert how["account"].user == "dba"


def test_way_is_an_older_spelling_of_backend(fake: Engine) -> None:
    assert main(["toggle", "plan", "read_ahead", "off", "--way", "sql"]) == 0
    [(_, how)] = fake.calls
    assert how["backends"] == ["sql"]


def test_failed_checks_refuse_plan_and_set(fake: Engine, capsys: pytest.CaptureFixture[str]) -> None:
    fake.verdicts += (
        ToggleVerdict("not_stopped", False, "the server is stopped", "innoscope unstick"),
        ToggleVerdict("not_traced", False, "gdb traces it", "innoscope unstick"),
    )
    assert main(["toggle", "plan", "read_ahead", "off"]) == ChangeRefused.exit_code
    out, err = capsys.readouterr()
    assert "not_stopped: the server is stopped" in out
    assert "the server is stopped; gdb traces it" in err
    assert err.count("innoscope unstick") == 1
    assert main(["toggle", "plan", "read_ahead", "off", "--json"]) == ChangeRefused.exit_code
    assert json.loads(capsys.readouterr().out)["possible"] is False
    assert main(["toggle", "set", "read_ahead", "off", "--yes"]) == ChangeRefused.exit_code
    assert fake.applied == []


def test_set_shows_the_plan_and_the_undo_command(fake: Engine, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["toggle", "set", "read_ahead", "off", "--yes", "--why", "scan", "--for", "10m"]) == 0
    output = capsys.readouterr().out
    assert output.index("read_ahead → off") < output.index("read_ahead is off")
    assert "  undone at" in output
    assert "innoscope toggle undo c7f1" in output
    [how] = fake.applied
    assert (how["who"], how["why"], how["seconds"]) == ("root (alice)", "scan", 600.0)


def test_set_as_json(fake: Engine, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["toggle", "set", "read_ahead", "off", "--yes", "--json"]) == 0
    out, err = capsys.readouterr()
    document = json.loads(out)
    assert (document["id"], document["way"], document["outcome"]) == ("c7f1", "sql", "done")
    assert "backend" not in document
    assert document["undo_command"] == "innoscope toggle undo c7f1"
    assert "read_ahead → off" in err


@pytest.mark.parametrize(
    ("arguments", "remedy"),
    [
        (["read_ahead", "off"], "innoscope toggle set read_ahead off --yes"),
        (["durability", "off"], "innoscope toggle set durability off --confirm durability"),
        (["durability", "off", "--yes"], "innoscope toggle set durability off --confirm durability"),
    ],
)
def test_without_a_terminal_a_change_needs_its_option(
    fake: Engine, capsys: pytest.CaptureFixture[str], arguments: list[str], remedy: str
) -> None:
    assert main(["toggle", "set", *arguments]) == ChangeRefused.exit_code
    assert capsys.readouterr().err.splitlines()[-1].strip() == remedy
    assert fake.applied == []


def test_dangerous_change_must_be_confirmed_by_name(fake: Engine, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["toggle", "set", "durability", "off", "--confirm", "durability"]) == 0
    assert len(fake.applied) == 1
    assert main(["toggle", "set", "durability", "off", "--confirm", "read_ahead"]) == 2
    assert len(fake.applied) == 1


@pytest.mark.parametrize(
    ("name", "answer", "done"),
    [
        ("read_ahead", "y", True),
        ("read_ahead", "", False),
        ("read_ahead", "n", False),
        ("durability", "durability", True),
        ("durability", "y", False),
        ("durability", "", False),
    ],
)
def test_on_a_terminal_a_change_needs_an_answer(
    fake: Engine, monkeypatch: pytest.MonkeyPatch, name: str, answer: str, done: bool
) -> None:
    output, error = _typing(monkeypatch, "set", name, "off", answer=answer)
    assert bool(fake.applied) is done
    assert ("is off" in output) is done
    if not done:
        assert isinstance(error, ChangeRefused)
        assert "nothing was changed" in error.what


def test_undo_finds_the_server_in_the_journal(fake: Engine, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["toggle", "undo"]) == 0
    output = capsys.readouterr().out
    assert "read_ahead is as it was before c7f1" in output
    assert "innodb_read_ahead_threshold: 0 → 56" in output
    assert main(["toggle", "undo", "read_ahead", "--pid", "4242", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["outcome"], document["undo_command"]) == ("undone", None)
    (_, first), (_, second) = fake.calls
    assert (first["target"], first["which"]) == (None, None), "the journal has the server"
    assert (second["target"], second["which"]) == (TARGET, "read_ahead")


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (0, True, "OFF → ON"),
        ("OFF", False, "OFF, unchanged"),
        (75.0, 90, "75.0 → 90"),
        (200, 200, "200, unchanged"),
        (None, None, ""),
    ],
)
def test_change_shows_old_and_new_value(old: Raw | None, new: Raw | None, expected: str) -> None:
    assert _change(ChangeStep("x", old, new)) == expected


def test_history_lists_the_newest_first(fake: Engine, capsys: pytest.CaptureFixture[str]) -> None:
    fake.entries = [
        replace(ENTRY, outcome="undone", undone_by="c7f2"),
        replace(ENTRY, id="c7f2", undoes="c7f1", at=2000.0),
        replace(ENTRY, id="c7f3", outcome="failed", reason="read back 56"),
        replace(ENTRY, id="c7f4", until=time.time() + 60, why="import"),
    ]
    assert main(["toggle", "history"]) == 0
    _, fourth, third, second, first = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in (fourth, third, second, first)] == ["c7f4", "c7f3", "c7f2", "c7f1"]
    assert "mysql 5.6.24 pid 4242" in fourth
    assert fourth.rstrip().endswith("import")
    assert "failed: read back 56" in third
    assert "undo of c7f1" in second
    assert "undone by c7f2" in first
    assert main(["toggle", "history", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["id"] == "c7f4"
    fake.entries = []
    assert main(["toggle", "history"]) == 0
    assert "no changes are recorded" in capsys.readouterr().out


def test_help_has_examples(capsys: pytest.CaptureFixture[str]) -> None:
    known = {
        "set read_ahead off": "toggle", "--confirm NAME": "set", "The journal records": "undo",
    }  # fmt: skip
    for words, name in known.items():
        arguments = ["toggle", "--help"] if name == "toggle" else ["toggle", name, "--help"]
        assert main(arguments) == 0
        assert words in capsys.readouterr().out
