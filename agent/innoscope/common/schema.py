"""Read YAML, TOML and JSON into typed structures; errors name the file, the line and the key.

The types are ``Entry`` structures (msgspec). A rule that a type cannot express is a ValueError raised in
``__post_init__``.
"""

from __future__ import annotations

import re
import tomllib
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec
import yaml

from innoscope.common.errors import BadFile
from innoscope.common.versions import VersionRange

if TYPE_CHECKING:
    from pathlib import Path

T = TypeVar("T")

#: libyaml's loader is five times as fast, but PyYAML can be built without it.
_LOADER: Final = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
#: msgspec ends its messages with the place: "Expected `str`, got `int` - at `$.rules[3].class`".
_PLACE: Final = re.compile(r"(?P<why>.*) - at `(?:key in )?\$(?P<keys>.*)`", re.DOTALL)
_KEY: Final = re.compile(r"\.([^.\[]+)|\[(\d+|\.\.\.)\]")


class Entry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A mapping of a file: unknown, missing and ill-typed keys are errors."""


def read_yaml(path: Path, kind: type[T]) -> T:
    """Read a YAML file. Raises BadFile."""
    text = _text(path)
    try:
        document = yaml.load(text, Loader=_LOADER)  # noqa: S506 - it is one of the two safe loaders
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise BadFile(f"cannot parse {path} as YAML: {_yaml_problem(error)}") from error
    return convert(document, kind, path, lambda keys: _yaml_line(text, keys))


def read_toml(path: Path, kind: type[T]) -> T:
    """Read a TOML file. Raises BadFile."""
    return decode_toml(_text(path), kind, path)


def decode_toml(text: str, kind: type[T], source: object) -> T:
    """Decode TOML from ``source``, which error messages name. Raises BadFile."""
    try:
        document = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # a number of 5,000 digits is a plain ValueError
        raise BadFile(f"cannot parse {source} as TOML: {error}") from error
    return convert(document, kind, source, lambda keys: _toml_line(text, keys))


def read_json(path: Path, kind: type[T]) -> T:
    """Read a JSON file. Raises BadFile."""
    return decode_json(_text(path), kind, path)


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


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise BadFile(f"cannot read {path}: {error.strerror}", remedy=f"ls -l {path}") from error
    except UnicodeDecodeError as error:
        raise BadFile(f"cannot read {path}: not UTF-8: byte {error.start}") from error


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


def _yaml_line(text: str, keys: list[str | int]) -> int | None:
    """Return the line of the deepest of the keys that the file has."""
    node: Any = yaml.compose(text, Loader=_LOADER)
    for key in keys:
        if isinstance(node, yaml.MappingNode):
            found = next((value for name, value in node.value if name.value == key), None)
        elif isinstance(node, yaml.SequenceNode) and isinstance(key, int) and key < len(node.value):
            found = node.value[key]
        else:
            found = None
        if found is None:
            break
        node = found
    return None if node is None else node.start_mark.line + 1


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


def _yaml_problem(error: Exception) -> str:
    """Return what is wrong and where, without quoting the file: it may contain a password."""
    mark = getattr(error, "problem_mark", None)
    grammar = isinstance(error, (yaml.scanner.ScannerError, yaml.parser.ParserError))
    words = re.split("['\"]", getattr(error, "problem", None) or "")[0].strip() if grammar else ""
    place = f"line {mark.line + 1}, column {mark.column + 1}" if mark else type(error).__name__
    return f"{words}, {place}" if words else place
