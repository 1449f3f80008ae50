"""Where the data that comes with the program is: catalogs, BPF sources, headers."""

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
    """Return the folder of the package's data: catalog, uprobes, include or runbooks."""
    return Path(__file__).resolve().parents[1] / name


def catalog_path(name: str) -> Path:
    """A file of the catalog: metrics.yaml, waits.yaml, …"""
    return folder("catalog") / name


def read_yaml(path: Path) -> Any:
    """Return the parsed file. Raises BadFile."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise BadFile(f"cannot read {path}: {error.strerror}", remedy=f"ls -l {path}") from error
    try:
        return yaml.load(content, Loader=_LOADER)  # noqa: S506 - it is one of the two safe loaders
    except (yaml.YAMLError, ValueError) as error:
        raise BadFile(f"{path} is not YAML: {_where(error)}") from error


@contextlib.contextmanager
def reading(path: Path) -> Iterator[None]:
    """Raise BadFile where the code that reads the document of ``path`` meets a value of another shape."""
    try:
        yield
    except (AttributeError, LookupError, RecursionError, TypeError, ValueError, re.error) as error:
        raise BadFile(f"{path}: {type(error).__name__}: {error}") from error


def _where(error: Exception) -> str:
    """Return what is wrong and where, without quoting the file: it may have a password in it."""
    mark = getattr(error, "problem_mark", None)
    grammar = isinstance(error, (yaml.scanner.ScannerError, yaml.parser.ParserError))
    words = re.split("['\"]", getattr(error, "problem", None) or "")[0].strip() if grammar else ""
    place = f"line {mark.line + 1}, column {mark.column + 1}" if mark else type(error).__name__
    return f"{words}, {place}" if words else place
