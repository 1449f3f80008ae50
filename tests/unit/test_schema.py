"""Errors in typed YAML and TOML files name the file, the line and the key. Errors in JSON name the key."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Literal

import msgspec
import pytest

from innoscope.common import schema
from innoscope.common.errors import BadFile
from innoscope.common.versions import VersionRange

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


class Rule(schema.Entry, frozen=True):
    name: str
    versions: VersionRange | None = None
    state: Literal["sleeping", "running"] = "sleeping"
    like: re.Pattern[str] | None = None

    def __post_init__(self) -> None:
        if not self.name.islower():
            raise ValueError("name must be lower case")


class Rules(schema.Entry, frozen=True):
    rules: list[Rule]
    by_name: dict[str, Rule] = msgspec.field(default_factory=dict)


class Web(schema.Entry, frozen=True):
    port: int = 1


class Config(schema.Entry, frozen=True):
    web: Web


GOOD = 'rules:\n  - name: a\n    versions: "5.6+"\n  - name: b\n'


@pytest.fixture
def write_file(tmp_path: Path) -> Callable[[str, str], Path]:
    def write(name: str, text: str) -> Path:
        path = tmp_path / name
        path.write_text(text)
        return path

    return write


def test_a_valid_file_is_read(write_file: Callable[[str, str], Path]) -> None:
    found = schema.read_yaml(write_file("x.yaml", GOOD), Rules)

    assert [rule.name for rule in found.rules] == ["a", "b"]
    assert found.rules[0].versions == VersionRange((5, 6), None)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("rules:\n- name: a\n- nam: b\n", "line 3: rules[1]: Object contains unknown field `nam`"),
        ("rules:\n- name: a\n- {}\n", "line 3: rules[1]: Object missing required field `name`"),
        ("rules:\n- name: 5\n", "line 2: rules[0].name: Expected `str`, got `int`"),
        ("rules:\n- name: a\n  state: dead\n", "line 3: rules[0].state: Invalid enum value 'dead'"),
        ("rules:\n- name: A\n", "line 2: rules[0]: name must be lower case"),
        ("rules:\n- name: a\n  versions: 5.6\n", "line 3: rules[0].versions: quote the version range: 5.6"),
        ("rules: []\nby_name:\n  x: {name: 1}\n", "line 3: by_name.x.name: Expected `str`, got `int`"),
        ("rules: []\nby_name:\n  x: {name: x}\n  y: {name: y}\n  z: {}\n", "line 5: by_name.z: Object"),
        ("rules: []\nby_name:\n  x: {name: x}\n  1: {name: y}\n", "line 4: by_name[1]: Expected `str`"),
        ("rules:\n- name: a\n  like: (\n", "line 3: rules[0].like: malformed regular expression '('"),
        ("rules: []\nby_name: !!set {x: }\n", "line 2: by_name: Expected `object`, got `set`"),
        ("rules: !!omap [a: {name: 1}]\n", "line 1: rules[0]: Expected `object`, got `array`"),
        ("- 1\n", "line 1: Expected `object`, got `array`"),
        ("", "Expected `object`, got `null`"),
        ("rules: [\n", "as YAML"),
        ("a: &a [*a, *a]\nrules: *a\n", "x.yaml"),
    ],
)
def test_an_invalid_yaml_file_is_reported_with_line_and_key(
    write_file: Callable[[str, str], Path], text: str, words: str
) -> None:
    with pytest.raises(BadFile) as caught:
        schema.read_yaml(write_file("x.yaml", text), Rules)

    assert "x.yaml" in caught.value.what
    assert words in caught.value.what


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[web]\nport = 'x'\n", "line 2: web.port: Expected `int`, got `str`"),
        ("\n[web]\nprot = 1\n", "line 2: web: Object contains unknown field `prot`"),
        ("[web\n", "as TOML"),
    ],
)
def test_an_invalid_toml_file_is_reported_with_line_and_key(
    write_file: Callable[[str, str], Path], text: str, words: str
) -> None:
    with pytest.raises(BadFile) as caught:
        schema.read_toml(write_file("x.toml", text), Config)

    assert words in caught.value.what


def test_invalid_json_is_reported_with_its_key() -> None:
    with pytest.raises(BadFile, match=r"the journal: rules: Expected `array`, got `int`"):
        schema.decode_json(b'{"rules": 1}', Rules, "the journal")
    with pytest.raises(BadFile, match=r"the journal: by_name\.a\.name: Expected `str`, got `int`"):
        schema.decode_json(b'{"rules": [], "by_name": {"a": {"name": 1}}}', Rules, "the journal")
    with pytest.raises(BadFile, match="cannot parse the journal as JSON"):
        schema.decode_json(b"{", Rules, "the journal")
    with pytest.raises(BadFile):
        schema.decode_json(b"[" * 100_000, Rules, "the journal")


def test_an_entry_fits_the_servers_of_its_version_ranges() -> None:
    entry = schema.convert({"mysql": "5.6+", "mariadb": "10.6"}, schema.ServerEntry, "x")

    assert entry.fits("mysql", (9, 7))
    assert entry.fits("mariadb", (10, 6, 21))
    assert not entry.fits("mariadb", (10, 11))
    assert not entry.fits("mysql", ())
    assert not entry.fits("drizzle", (7,))
    assert schema.ServerEntry().fits("mysql", ())


def test_unreadable_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadFile, match="cannot read"):
        schema.read_yaml(tmp_path / "none.yaml", Rules)
    (tmp_path / "x.yaml").write_bytes(b"\xff")
    with pytest.raises(BadFile, match="not UTF-8"):
        schema.read_yaml(tmp_path / "x.yaml", Rules)


@pytest.mark.parametrize(
    ("text", "inside", "outside"),
    [
        ("5.6", [(5, 6), (5, 6, 51)], [(5, 5, 62), (5, 7, 0)]),
        ("5.6+", [(5, 6, 0), (9, 7)], [(5, 5)]),
        ("5.5-5.7", [(5, 5, 0), (5, 7, 44)], [(8, 0), (5, 4)]),
        ("10.6.4-10.6", [(10, 6, 4), (10, 6, 21)], [(10, 6, 3), (10, 7)]),
    ],
)
def test_a_version_range_contains_its_patch_releases(
    text: str, inside: list[tuple[int, ...]], outside: list[tuple[int, ...]]
) -> None:
    versions = VersionRange.parse(text)

    assert all(version in versions for version in inside)
    assert not any(version in versions for version in outside)
    assert str(versions) == text


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        *((text, "reversed") for text in ("5.7-5.6", "10.11-10.6.4", "8.0-5")),
        *((text, "malformed") for text in ("", "5.", "5-", "-5", "5.6-", "5.6++", "x", "5.6 ")),
    ],
)
def test_reversed_and_malformed_version_ranges_are_refused(text: str, problem: str) -> None:
    with pytest.raises(ValueError, match=f"{problem} version range"):
        VersionRange.parse(text)
