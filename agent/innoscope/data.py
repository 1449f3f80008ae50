"""Where the data that comes with the program is: catalogs, BPF sources, headers."""

from __future__ import annotations

import contextlib
import marshal
import re
import sys
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from innoscope import kept
from innoscope.errors import BadFile

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Folders of the source tree that are not in probes/.
_ELSEWHERE: Final = {"runbooks": "dashboards/runbooks"}
#: By file; of some versions of Innoscope.
_PARSED: Final = kept.Shelf("catalogs", 64)


def folder(name: str) -> Path:
    """The folder ``probes/<name>`` of the source tree, or where it was installed as ``innoscope.<name>``.

    Names: catalog, uprobes, include; runbooks, which is in dashboards/.
    """
    in_tree = Path(__file__).resolve().parents[2] / _ELSEWHERE.get(name, f"probes/{name}")
    if in_tree.is_dir():
        return in_tree
    return Path(import_module(f"innoscope.{name}").__path__[0])


def catalog_path(name: str) -> Path:
    """A file of the catalog: metrics.yaml, waits.yaml, …"""
    return folder("catalog") / name


def read_yaml(path: Path) -> Any:
    """The parsed file. Raises BadFile."""
    return _parsed(path, _content(path))


def read_catalog(path: Path) -> Any:
    """The same of a file without secrets: what was parsed is kept, since YAML takes long and all need it."""
    key = kept.key(str(sys.implementation.cache_tag), *_identity(path))
    if (known := _PARSED.read(key)) is not None:
        return marshal.loads(known)  # noqa: S302 - it is ours, as compiled Python is
    data = _parsed(path, _content(path))
    with contextlib.suppress(ValueError):  # a date, or what has itself in it
        _PARSED.write(key, marshal.dumps(data))
    return data


@contextlib.contextmanager
def reading(path: Path) -> Iterator[None]:
    """Raise BadFile where the code that reads the document of ``path`` meets a value of another shape."""
    try:
        yield
    except (AttributeError, LookupError, RecursionError, TypeError, ValueError, re.error) as error:
        raise BadFile(f"{path}: {type(error).__name__}: {error}") from error


def _identity(path: Path) -> tuple[str, ...]:
    """Another one whenever the file was written or replaced, without reading it."""
    try:
        told = path.stat()
    except OSError:  # whoever reads it says why
        return (str(path),)
    numbers = (told.st_dev, told.st_ino, told.st_size, told.st_mtime_ns, told.st_ctime_ns)
    return (str(path), *map(str, numbers))


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise BadFile(f"cannot read {path}: {error.strerror}", remedy=f"ls -l {path}") from error


def _parsed(path: Path, content: bytes) -> Any:
    import yaml

    try:
        return yaml.load(content, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # noqa: S506
    except (yaml.YAMLError, ValueError) as error:
        raise BadFile(f"{path} is not YAML: {_where(error)}") from error


def _where(error: Exception) -> str:
    """What is wrong and where. What stands there is not repeated: the file may have a password in it."""
    import yaml

    mark = getattr(error, "problem_mark", None)
    grammar = isinstance(error, (yaml.scanner.ScannerError, yaml.parser.ParserError))
    words = re.split("['\"]", getattr(error, "problem", None) or "")[0].strip() if grammar else ""
    place = f"line {mark.line + 1}, column {mark.column + 1}" if mark else type(error).__name__
    return f"{words}, {place}" if words else place
