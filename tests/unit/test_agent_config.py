"""The agent's TOML configuration: the example has every key, and errors name the key."""

from __future__ import annotations

import re
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import get_args, get_origin, get_type_hints

import pytest

from innoscope.common.errors import BadFile
from innoscope.daemon.agent import config

EXAMPLE = Path(__file__).parents[2] / "packaging" / "agent.toml"


def loaded(tmp_path: Path, text: str) -> config.Config:
    file = tmp_path / "agent.toml"
    file.write_text(text)
    return config.load(file)


def keys(kind: type, path: str = "") -> set[str]:
    """Return the names of all keys, such as ``web.listen_address``."""
    found = set()
    hints = get_type_hints(kind)
    for field in fields(kind):
        hint = get_args(hints[field.name])[0] if get_origin(hints[field.name]) is tuple else hints[field.name]
        inner = is_dataclass(hint)
        found |= keys(hint, f"{path}{field.name}.") if inner else {path + field.name}
    return found


def test_example_has_every_key_with_its_default() -> None:
    section, found = "", set()
    for line in EXAMPLE.read_text().splitlines():
        if header := re.fullmatch(r"#? ?\[+(\w+)\]+", line):
            section = f"{header.group(1)}."
        elif key := re.fullmatch(r"#? ?(\w+) = .*", line):
            found.add(section + key.group(1))

    assert found == keys(config.Config)
    assert config.load(EXAMPLE) == config.Config()


def test_commented_keys_of_the_example_are_valid(tmp_path: Path) -> None:
    text = re.sub(r"^# (?=\[\[|\w+ = )", "", EXAMPLE.read_text(), flags=re.MULTILINE)
    text = re.sub(r"^basic_auth_file = .*\n", "", text, flags=re.MULTILINE)  # not with bearer_token_file

    assert loaded(tmp_path, text).server[0].name == "orders"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[web]\nlisten_adress = 'x'", "did you mean web.listen_address"),
        ("[wep]", "did you mean web"),
        ("[[server]]\nsocket = '/s'", r"server\[0\].name is missing"),
        ("[sql]\nenabled = 'yes'", "sql.enabled is true or false"),
        ("[sql]\ntimeout_seconds = true", "sql.timeout_seconds is a number"),
        ("[sql]\ntimeout_seconds = 5", "between 0.01 and 0.8"),
        ("web = 1", "web is a table"),
        ("[server]\nname = 'a'", "server is a list of tables"),
        ("[push]\nurl = 'here'", "push.url is like"),
        ("[push]\nlabels = {a = 1}", "push.labels is a table of strings"),
        ("[own]\nprofile_seconds = 10", "own.profile_seconds is no longer used: remove it"),
        ("[log]\nlevel = 'loud'", "log.level is one of"),
        ("[[server]]\nname = 'a'", "needs a socket or a port"),
        ("[[server]]\nname = 'a'\nport = 1\n[[server]]\nname = 'a'\nport = 2", "different from each other"),
        ("[[server]]\nname = 'a'\nhost = 'b'\nsocket = '/s'", "has a host and no port"),
        ("[web]\ntelemetry_path = 'metrics'", "web.telemetry_path is a path"),
        ("[watch]\ntriggers = ['threads_runing>5']", "did you mean threads_running"),
        ("[watch]\ntriggers = 'threads_running>5'", "watch.triggers is a list of strings"),
        ("[watch]\nbefore_seconds = 600", "what the sensor keeps"),
        ("[watch]\nfor_seconds = 60", "between 0 and 30"),
        ("[watch]\nmax_files = 0", "watch.max_files is 1 or more"),
        ("x", "is not TOML"),
    ],
)
def test_invalid_setting_is_named(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(BadFile, match=words):
        loaded(tmp_path, text)


def test_whole_number_is_valid_for_a_float(tmp_path: Path) -> None:
    assert loaded(tmp_path, "[stacks]\nkeep_seconds = 600").stacks.keep_seconds == 600.0
