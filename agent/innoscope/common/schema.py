"""Read YAML and TOML files into typed structures (typed.py). Errors name the file, the key and the line.

JSON that people write, such as a list of agents for Prometheus, is read as YAML. Errors then name the line.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final, TypeVar

import yaml

from innoscope.common.errors import BadFile
from innoscope.common.typed import (
    Citation,
    Entry,
    NamedEntry,
    ServerEntry,
    convert,
    decode_json,
    decode_toml,
    name_entries,
)

if TYPE_CHECKING:
    from pathlib import Path

__all__ = [
    "Citation", "Entry", "NamedEntry", "ServerEntry", "convert", "decode_json", "decode_toml", "name_entries",
    "read_toml", "read_yaml",
]  # fmt: skip

T = TypeVar("T")

#: libyaml's loader is five times as fast as PyYAML's own, but PyYAML can be built without it.
_LOADER: Final = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def read_yaml(path: Path, kind: type[T]) -> T:
    """Read a YAML file. Raise BadFile if it cannot be read or is invalid."""
    text = _text(path)
    try:
        document = yaml.load(text, Loader=_LOADER)  # noqa: S506 - it is one of the two safe loaders
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise BadFile(f"cannot parse {path} as YAML: {_yaml_problem(error)}") from error
    return convert(document, kind, path, lambda keys: _yaml_line(text, keys))


def read_toml(path: Path, kind: type[T]) -> T:
    """Read a TOML file. Raise BadFile if it cannot be read or is invalid."""
    return decode_toml(_text(path), kind, path)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise BadFile(f"cannot read {path}: {error.strerror}", remedy=f"ls -l {path}") from error
    except UnicodeDecodeError as error:
        raise BadFile(f"cannot read {path}: not UTF-8: byte {error.start}") from error


def _yaml_line(text: str, keys: list[Any]) -> int | None:
    """Return the line number of the deepest of ``keys`` that exists in the file, or None."""
    try:
        node: Any = yaml.compose(text, Loader=_LOADER)
    except RecursionError:
        return None
    for key in keys:
        if isinstance(node, yaml.MappingNode):
            found = next((value for name, value in node.value if name.value == str(key)), None)
        elif isinstance(node, yaml.SequenceNode) and isinstance(key, int) and key < len(node.value):
            found = node.value[key]
        else:
            found = None
        if found is None:
            break
        node = found
    return None if node is None else node.start_mark.line + 1


def _yaml_problem(error: Exception) -> str:
    """Return the error and its location, without quoting the file, which may contain a password."""
    mark = getattr(error, "problem_mark", None)
    grammar = isinstance(error, (yaml.scanner.ScannerError, yaml.parser.ParserError))
    words = re.split("['\"]", getattr(error, "problem", None) or "")[0].strip() if grammar else ""
    place = f"line {mark.line + 1}, column {mark.column + 1}" if mark else type(error).__name__
    return f"{words}, {place}" if words else place
