"""Each check refuses a change for one reason, and names the remedy.

tests/safety/test_toggle_facts.py needs root; it tests how facts about other processes are gathered.
"""

from __future__ import annotations

import os
import socket
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from innoscope.toggles import checks, facts
from innoscope.toggles.facts import Facts
from innoscope.toggles.journal import Journal
from innoscope.toggles.model import (
    Assignment,
    Backend,
    ChangeRefused,
    ChangeStep,
    Domain,
    ToggledVariable,
    ToggleVerdict,
)
from unit.test_target_sql import target
from unit.toggling import entry

if TYPE_CHECKING:
    from pathlib import Path

TARGET = target(pid=7, start_time=99, build_id="ab")
GOOD = Facts(99, "ab", "boot")
BACKEND = Backend("memory", (Assignment(ToggledVariable("spin", "unsigned", 8, (0, 100))),))
STEPS = (ChangeStep("spin", 30, 7, 4096, 8, "unsigned"),)
CHANGE = checks.Change("spin", Domain(low=0, high=500), "7", BACKEND, STEPS)


def refusals(change: checks.Change = CHANGE, entries: Any = (), **changed: Any) -> list[ToggleVerdict]:
    found = checks.verdicts(TARGET, replace(GOOD, **changed), change, entries)
    return [verdict for verdict in found if not verdict.ok]


def test_all_checks_pass() -> None:
    assert refusals() == []


@pytest.mark.parametrize(
    ("changed", "check", "words"),
    [
        ({"start_time": None}, "identity", "has exited"),
        ({"start_time": 100}, "identity", "another process"),
        ({"build_id": "cd"}, "identity", "build-id cd, not ab"),
        ({"stopped": 3}, "not_stopped", "3 threads"),
        ({"tracer": 12, "tracer_name": "gdb"}, "not_traced", "process 12 (gdb)"),
        ({"listens": False}, "serving", "starting, recovering"),
        ({"listens": False, "phase": "recovering"}, "serving", "is recovering"),
        ({"listens": False, "phase": "stopping"}, "serving", "is shutting down"),
        (
            {"memory_error": "Permission denied", "ptrace_capable": False},
            "rights",
            "cannot write to",
        ),
        ({"memory_error": "no", "ptrace_scope": 3}, "ptrace_policy", "ptrace_scope is 3"),
        ({"memory_error": "no", "seccomp": True}, "ptrace_policy", "seccomp"),
        ({"memory_error": "no"}, "ptrace_policy", "security module"),
        ({"journal_problem": ("disk full", "df")}, "journal", "disk full"),
    ],
)
def test_each_problem_of_server_or_tool_fails_its_check(
    changed: dict[str, Any], check: str, words: str
) -> None:
    (verdict,) = refusals(**changed)

    assert verdict.check == check
    assert words in str(verdict.reason)
    assert verdict.remedy


def test_sql_needs_no_right_to_write_to_memory() -> None:
    change = replace(CHANGE, backend=Backend("sql", BACKEND.assignments), steps=(ChangeStep("spin", 30, 7),))

    assert refusals(change, memory_error="no", ptrace_capable=False) == []
    assert refusals(change, memory_error="no", ptrace_scope=3) == []


def test_an_unknown_version_is_refused() -> None:
    unknown = replace(TARGET, version=(), version_from="unknown")

    assert not checks.catalog_knows(unknown).ok
    assert checks.catalog_knows(unknown).remedy


@pytest.mark.parametrize(
    ("step", "check", "words"),
    [
        (ChangeStep("spin", 101, 7, 4096, 8, "unsigned"), "plausible", "101"),
        (ChangeStep("spin", -1, 7, 4096, 8, "unsigned"), "plausible", "-1"),
        (ChangeStep("spin", "ON", 7, 4096, 8, "unsigned"), "plausible", "ON"),
        (ChangeStep("spin", 30, 7, 4096, 1, "unsigned"), "as_declared", "bytes 1"),
        (ChangeStep("spin", 30, 7, 4096, 8, "float"), "as_declared", "type float"),
    ],
)
def test_an_implausible_value_or_type_is_refused(step: ChangeStep, check: str, words: str) -> None:
    (verdict,) = refusals(replace(CHANGE, steps=(step,)))

    assert verdict.check == check
    assert words in str(verdict.reason)
    assert verdict.remedy


@pytest.mark.parametrize(
    ("domain", "value", "fits"),
    [
        (Domain(words=("off", "on")), "OFF", True),
        (Domain(words=("off", "on")), "maybe", False),
        (Domain(words=("off", "on")), "1", False),
        (Domain(low=0, high=10), "10", True),
        (Domain(low=0, high=10), "10.5", False),
        (Domain(low=0, high=10), "11", False),
        (Domain(low=0, high=10), "-1", False),
        (Domain(low=0, high=10), "nan", False),
        (Domain(low=0, high=99.9, whole=False), "10.5", True),
        (Domain(low=1), "1e30", True),
        (Domain(words=("off",), low=1, high=64), "off", True),
        (Domain(words=("off",), low=1, high=64), "0", False),
    ],
)
def test_the_value_must_be_in_the_toggle_s_domain(domain: Domain, value: str, fits: bool) -> None:
    verdict = checks.in_range(domain, value)

    assert verdict.ok is fits
    assert fits or verdict.remedy


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"outcome": "intended"}, "never completed"),
        ({"outcome": "done", "until": 5.0}, "undone automatically"),
        ({"outcome": "intended", "toggle": "other"}, "never completed"),
        ({"outcome": "intended", "undoes": "ffff"}, "the undo"),
        ({"outcome": "done"}, None),
        ({"outcome": "undone", "until": 5.0}, None),
        ({"outcome": "failed", "until": 5.0, "put_back": True}, None),
        ({"outcome": "intended", "toggle": "other", "steps": (ChangeStep("more", 1, 2),)}, None),
        ({"outcome": "intended", "steps": (ChangeStep("call", None, None),)}, None),
    ],
)
def test_an_unfinished_change_of_the_same_setting_is_refused(
    changed: dict[str, Any], words: str | None
) -> None:
    found = refusals(entries=[entry(**changed)])

    assert [verdict.check for verdict in found] == (["no_other_change"] if words else [])
    assert all(words in str(verdict.reason) and "undo" in str(verdict.remedy) for verdict in found if words)


def test_changes_of_another_process_are_ignored() -> None:
    before = replace(entry().server, start_time=98)

    assert refusals(entries=[entry(outcome="intended", server=before)]) == []


def test_the_first_refusal_is_the_error() -> None:
    with pytest.raises(ChangeRefused, match="has exited") as caught:
        checks.refuse(checks.verdicts(TARGET, replace(GOOD, start_time=None, stopped=1), CHANGE, ()))

    assert caught.value.remedy


def test_this_process_is_recognized_as_listening(tmp_path: Path) -> None:
    me = target(pid=os.getpid())
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "sock"))
        listener.listen()
        assert facts.gather(me, Journal(tmp_path / "state")).listens
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        assert facts.gather(me, Journal(tmp_path / "state")).listens
