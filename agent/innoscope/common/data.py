"""Find and read the data files of the package: catalogs, BPF sources, headers."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import yaml

from innoscope.common.errors import BadFile

if TYPE_CHECKING:
    from collections.abc import Iterator

#: libyaml's loader is five times as fast, but PyYAML can be built without it.
_LOADER: Final = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def folder(name: str) -> Path:
    """Return the path of one data folder: catalog, uprobes, include or runbooks."""
    return Path(__file__).resolve().parents[1] / name


def catalog_path(name: str) -> Path:
    """Return the path of a catalog file: metrics.yaml, waits.yaml, …"""
    return folder("catalog") / name


def read_yaml(path: Path) -> Any:
    """Parse a YAML file. Raises BadFile."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise BadFile(f"cannot read {path}: {error.strerror}", remedy=f"ls -l {path}") from error
    try:
        return yaml.load(content, Loader=_LOADER)  # noqa: S506 - it is one of the two safe loaders
    except (yaml.YAMLError, ValueError) as error:
        raise BadFile(f"{path} is not YAML: {_problem(error)}") from error


@contextlib.contextmanager
def reading(path: Path) -> Iterator[None]:
    """Raise BadFile if the enclosed code finds a value of an unexpected shape in the document of ``path``."""
    try:
        yield
    except (AttributeError, LookupError, RecursionError, TypeError, ValueError, re.error) as error:
        raise BadFile(f"{path}: {type(error).__name__}: {error}") from error


def _problem(error: Exception) -> str:
    """Describe the problem and its position without quoting the file, which may contain a password."""
    mark = getattr(error, "problem_mark", None)
    is_syntax_error = isinstance(error, (yaml.scanner.ScannerError, yaml.parser.ParserError))
    text = getattr(error, "problem", None) or ""
    description = re.split("['\"]", text)[0].strip() if is_syntax_error else ""
    position = f"line {mark.line + 1}, column {mark.column + 1}" if mark else type(error).__name__
    return f"{description}, {position}" if description else position
