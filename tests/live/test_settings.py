"""Test that each server has exactly the settings listed for it, and all settings named in its advice."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from innoscope.diagnose import advice
from innoscope.diagnose.rules import default_rules
from innoscope.target.discover import find_one
from servers import NAMES, SERVERS, Server

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Servers whose settings are compared: all but the Galera server, which is one of the others with a plugin.
COMPARED = (*NAMES, *(name for name in SERVERS if name not in NAMES and "galera" not in name))


@pytest.fixture(scope="module", params=COMPARED)
def running(request: pytest.FixtureRequest) -> Iterator[Server]:
    with Server(request.param) as server:
        yield server


@pytest.fixture(scope="module")
def variables(running: Server) -> dict[str, str]:
    return {str(name).lower(): str(value) for name, value in running.sql("SHOW GLOBAL VARIABLES")}


def _described(server: Server) -> tuple[str, tuple[int, ...], dict[str, str]]:
    target = find_one(pid=server.pid)
    return target.flavour, target.version, {"flavour": target.flavour, "version": target.version_text}


def test_the_catalog_says_which_settings_exist(running: Server, variables: dict[str, str]) -> None:
    flavour, version, _ = _described(running)
    fixed = {name: setting for name, setting in advice.settings().items() if not setting.optional}

    assert {name for name in fixed if name in variables} == {
        name for name, setting in fixed.items() if setting.fits(flavour, version)
    }


def test_advice_names_only_settings_of_the_server(running: Server, variables: dict[str, str]) -> None:
    _, _, described = _described(running)
    shown = [line for rule in default_rules() for line in advice.lines(rule.do, described)]
    named = {word for line in shown for word in advice.words(line) if word in advice.settings()}

    assert {name for name in named if not advice.settings()[name].optional} <= variables.keys()
    assert len(named) > 20


def test_the_default_of_lock_wait_timeout_is_as_the_advice_says(
    running: Server, variables: dict[str, str]
) -> None:
    _, _, described = _described(running)
    [rule] = [rule for rule in default_rules() if rule.name == "metadata_lock"]
    [line] = [line for line in advice.lines(rule.do, described) if "lock_wait_timeout" in line]

    assert line.endswith({"31536000": "a year", "86400": "a day"}[variables["lock_wait_timeout"]])
