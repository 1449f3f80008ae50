"""The agent's example configuration contains every key, and error messages name the key."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

from innoscope.common.errors import BadFile
from innoscope.daemon.agent import config

EXAMPLE = Path(__file__).parents[2] / "packaging" / "agent.toml"


def loaded(tmp_path: Path, text: str) -> config.Config:
    file = tmp_path / "agent.toml"
    file.write_text(text)
    return config.load(file)


def keys(kind: type[msgspec.Struct], path: str = "") -> set[str]:
    """Return the paths of all keys of a section: ``web.listen_address``, ``server.name``, …"""
    found = set()
    for one in msgspec.structs.fields(kind):
        section = config.Server if one.name == "server" else one.default_factory
        if isinstance(section, type) and issubclass(section, msgspec.Struct):
            found |= keys(section, f"{path}{one.name}.")
        else:
            found.add(path + one.name)
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
    # basic_auth_file conflicts with bearer_token_file, and in [upload], both conflict with kind = "s3".
    text = re.sub(r"^basic_auth_file = .*\n", "", text, flags=re.MULTILINE)
    text = re.sub(r"^bearer_token_file = .*upload.*\n", "", text, flags=re.MULTILINE)

    assert loaded(tmp_path, text).server[0].name == "orders"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[web]\nlisten_adress = 'x'", "line 1: web: Object contains unknown field `listen_adress`"),
        ("[wep]", "unknown field `wep`"),
        ("[[server]]\nsocket = '/s'", r"line 1: server\[0\]: Object missing required field `name`"),
        (
            "[[server]]\nname = 'a'\nsocket = '/a'\n[[server]]\nname = 'b'\nsocket = 1",
            r"line 6: server\[1\].socket: Expected `str \| null`, got `int`",
        ),
        ("[sql]\nenabled = 'yes'", "line 2: sql.enabled: Expected `bool`, got `str`"),
        ("[sql]\ntimeout_seconds = true", "sql.timeout_seconds: Expected `float`, got `bool`"),
        ("[sql]\ntimeout_seconds = 5", "line 2: sql.timeout_seconds: Expected `float` <= 0.8"),
        ("web = 1", "web: Expected `object`, got `int`"),
        ("[server]\nname = 'a'", "server: Expected `array`, got `object`"),
        ("[push]\nurl = 'here'", "line 1: push: malformed url"),
        ("[push]\nlabels = {a = 1}", r"line 2: push.labels.a: Expected `str`, got `int`"),
        ("[own]\nprofile_seconds = 10", "own: Object contains unknown field `profile_seconds`"),
        ("[log]\nlevel = 'loud'", r"log.level: Expected `str` matching regex .*info\|warning"),
        ("[[server]]\nname = 'a'", "needs a socket or a port"),
        ("[[server]]\nname = 'a'\nport = 1\n[[server]]\nname = 'a'\nport = 2", "duplicate server name 'a'"),
        ("[[server]]\nname = 'a'\nhost = 'b'\nsocket = '/s'", "has a host but no port"),
        ("[web]\ntelemetry_path = 'metrics'", "web.telemetry_path: Expected `str` matching"),
        ("[watch]\ntriggers = ['threads_runing>5']", "did you mean threads_running"),
        ("[watch]\ntriggers = 'threads_running>5'", "watch.triggers: Expected `array`, got `str`"),
        ("[watch]\nbefore_seconds = 600", "before_seconds: Expected `float` <= 60"),
        ("[watch]\nfor_seconds = 60", "for_seconds: Expected `float` <= 30"),
        ("[watch]\nmax_files = 0", "watch.max_files: Expected `int` >= 1"),
        ('[[server]]\nname = "a\\u0000"\nport = 1', "empty or not printable"),
        ("[stacks]\nkeep_seconds = nan", "keep_seconds: Expected `float` >= 60"),
        ("[stacks]\nkeep_seconds = 1" + "0" * 400, "keep_seconds"),
        ("a = " + "[" * 5000, "cannot parse .* as TOML"),
        ("x", "cannot parse .* as TOML"),
    ],
)
def test_invalid_setting_is_named(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(BadFile, match=words):
        loaded(tmp_path, text)


def test_whole_number_is_valid_for_a_float(tmp_path: Path) -> None:
    assert loaded(tmp_path, "[stacks]\nkeep_seconds = 600").stacks.keep_seconds == 600.0
