"""Convert parsed TOML and JSON into typed structures. YAML is in schema.py: its library is slow to import."""

from __future__ import annotations

import re
import tomllib
from typing import Any, Final, TypeVar

import msgspec

from innoscope.common.errors import BadFile
from innoscope.common.versions import VersionRange

T = TypeVar("T")

#: msgspec ends its messages with the place: "Expected `str`, got `int` - at `$.rules[3].class`".
_PLACE: Final = re.compile(r"(?P<why>.*) - at `(?:key in )?\$(?P<keys>.*)`", re.DOTALL)
_KEY: Final = re.compile(r"\.([^.\[]+)|\[(\d+|\.\.\.)\]")


class Entry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A mapping of a file: unknown, missing and ill-typed keys are errors."""


def decode_toml(text: str, kind: type[T], source: object) -> T:
    """Decode TOML from ``source``, which error messages name. Raises BadFile."""
    try:
        document = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # a number of 5,000 digits is a plain ValueError
        raise BadFile(f"cannot parse {source} as TOML: {error}") from error
    return convert(document, kind, source, lambda keys: _toml_line(text, keys))


def decode_json(text: str | bytes, kind: type[T], source: object) -> T:
    """Decode JSON from ``source``, which error messages name. Raises BadFile."""
    try:
        return msgspec.json.decode(text, type=kind, dec_hook=_hook)
    except msgspec.ValidationError as error:
        raise BadFile(f"{source}: {_where(error)[1]}") from error
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise BadFile(f"cannot parse {source} as JSON: {error}") from error


def convert(document: object, kind: type[T], source: object, line_of: Any = None) -> T:
    """Convert a parsed document. ``line_of`` maps a list of keys to a line number or None. Raises BadFile."""
    try:
        return msgspec.convert(document, kind, dec_hook=_hook)
    except (msgspec.ValidationError, RecursionError) as error:
        keys, words = _where(error)
        line = line_of(keys) if line_of is not None else None
        raise BadFile(f"{source}{f', line {line}' if line else ''}: {words}") from error


def _hook(kind: type, value: Any) -> Any:
    if kind is VersionRange:
        if not isinstance(value, str):  # YAML reads 5.6 without quotes as a number
            raise ValueError(f"quote the version range: {value!r}")
        return VersionRange.parse(value)
    raise NotImplementedError(kind)


def _where(error: Exception) -> tuple[list[str | int], str]:
    """Return the keys that lead to an invalid value, and the message: ``rules[3].class: Expected …``."""
    match = _PLACE.fullmatch(str(error))
    if match is None:
        return [], str(error)
    keys: list[str | int] = []
    for name, index in _KEY.findall(match["keys"]):
        if index == "...":  # a value of a mapping, whose key msgspec does not name
            break
        keys.append(name or int(index))
    return keys, f"{match['keys'].removeprefix('.')}: {match['why']}" if match["keys"] else match["why"]


def _toml_line(text: str, keys: list[str | int]) -> int | None:
    """Return the line of a key of a table, or the table's own; arrays of tables are not followed."""
    names = [str(key) for key in keys]
    found, table = None, ""
    for number, line in enumerate(text.splitlines(), 1):
        if header := re.match(r"\s*\[+\s*([\w.\-]+)\s*\]+", line):
            table = header[1]
            if names and table == names[0]:
                found = found or number
        elif name := re.match(r"\s*([\w\-]+)\s*=", line):
            path = [*table.split("."), name[1]] if table else [name[1]]
            if names[: len(path)] == path:
                return number
    return found
