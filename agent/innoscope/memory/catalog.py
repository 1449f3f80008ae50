"""Read and check ``probes/catalog/memory.yaml``: where each server generation has each number."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from innoscope.common.data import catalog_path, read_yaml, reading
from innoscope.common.errors import BadFile

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_TOP_KEYS: Final = {"version", "lengths", "values", "tables"}
_PLACES: Final = ("paths", "symbol", "status", "variable")
_SOURCE_KEYS: Final = {*_PLACES, "kind", "flavour", "from", "below", "bits", "scale", "when", "settled"}
_KINDS: Final = {"unsigned", "signed", "float"}
_TYPES: Final = {"bool", "uint32", "uint64", "int32", "int64", "float64"}
_FLAVOURS: Final = {"mysql", "mariadb"}
_STATUS_KEYS: Final = {"prefix", "anchors", "types", "live", "copies"}
_PATH: Final = re.compile(r"\w+(?:\.\w+|\[(?:\d+|\*)\])*")
_NUMBER: Final = re.compile(r"\d+(?:\.\d+)*")
_VALUE: Final = re.compile(r"[a-z][a-z0-9_]*(?:\.[a-z_]+)?")


@dataclass(frozen=True, slots=True)
class Source:
    """One place to read a value from: exactly one of ``paths``, ``symbol``, ``status``, ``variable``."""

    paths: tuple[str, ...] = ()
    symbol: str | None = None
    kind: str | None = None
    status: tuple[str, ...] = ()
    variable: str | None = None
    flavour: str | None = None
    least: tuple[int, ...] = ()
    below: tuple[int, ...] | None = None
    bits: tuple[int, int] | None = None
    scale: float | None = None
    when: str | None = None
    settled: bool = False

    def is_for(self, flavour: str, version: tuple[int, ...]) -> bool:
        """Return whether this source applies to the server's flavour and version."""
        return (
            self.flavour in (None, flavour)
            and version >= self.least
            and (self.below is None or version < self.below)
        )


@dataclass(frozen=True, slots=True)
class StatusTable:
    """How to find the table of status variables. ``types`` is ``{flavour: {number: type}}``."""

    prefix: str
    anchors: tuple[str, ...]
    types: Mapping[str, Mapping[int, str]]
    live: Mapping[str, frozenset[str]]
    copies: frozenset[str]


@dataclass(frozen=True, slots=True)
class VariableTable:
    """How to find the table of system variables."""

    prefix: str
    anchors: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Catalog:
    """The checked contents of the file.

    ``lengths`` is ``{pointer: variable with the number of elements}``.
    """

    lengths: Mapping[str, str]
    values: Mapping[str, tuple[Source, ...]]
    status: StatusTable
    variables: VariableTable
    #: All paths that need debug information, in file order.
    paths: tuple[str, ...] = field(default=())


def load(path: Path | None = None) -> Catalog:
    """Read and check the catalog. Raises BadFile with the first problem."""
    path = path or catalog_path("memory.yaml")
    data = read_yaml(path)
    with reading(path):
        found = problems(data)
        if found:
            raise BadFile(f"{path}: {found[0]}" + (f" (and {len(found) - 1} more)" if found[1:] else ""))
        return _build(data)


def problems(data: Any) -> list[str]:
    """Return the problems of a parsed memory.yaml as text; empty if it is valid."""
    if not isinstance(data, dict):
        return ["the file is not a mapping"]
    found = [f"unknown key {key!r}" for key in data.keys() - _TOP_KEYS]
    if data.get("version") != 1:
        found.append("version is not 1")
    values, lengths = data.get("values"), data.get("lengths")
    if not isinstance(values, dict) or not isinstance(lengths, dict):
        return [*found, "values and lengths must be mappings"]
    for name, sources in values.items():
        if not _VALUE.fullmatch(str(name)) or not isinstance(sources, list) or not sources:
            found.append(f"{name!r} is not a value with a list of places")
            continue
        for number, source in enumerate(sources, 1):
            found += [f"{name}, place {number}: {text}" for text in _source_problems(source, lengths)]
    return found + _table_problems(data.get("tables"))


def _source_problems(source: Any, lengths: dict[str, Any]) -> list[str]:
    if not isinstance(source, dict):
        return ["is not a mapping"]
    found = [f"unknown key {key!r}" for key in source.keys() - _SOURCE_KEYS]
    if len(source.keys() & set(_PLACES)) != 1:
        found.append(f"needs exactly one of {', '.join(_PLACES)}")
    if ("symbol" in source) != (source.get("kind") in _KINDS):
        found.append("a symbol needs a kind: unsigned, signed or float")
    if source.get("flavour", "mysql") not in _FLAVOURS:
        found.append(f"unknown flavour {source['flavour']!r}")
    found += [
        f"{key} is not a version"
        for key in ("from", "below")
        if not _NUMBER.fullmatch(str(source.get(key, "1")))
    ]
    bits = source.get("bits", [0, 64])
    if not (isinstance(bits, list) and len(bits) == 2 and 0 <= bits[0] < bits[1] <= 64):
        found.append("bits is not [first, end)")
    if not isinstance(source.get("scale", 1.0), float):
        found.append("scale is not a number with a point")
    return found + _path_problems(source, lengths)


def _path_problems(source: dict[str, Any], lengths: dict[str, Any]) -> list[str]:
    paths = source.get("paths", [])
    if not isinstance(paths, list):
        return ["paths is not a list"]
    found = []
    for path in [*paths, *([source["when"]] if "when" in source else [])]:
        if not _PATH.fullmatch(str(path)):
            found.append(f"{path!r} is not a path of members")
        root, star, _ = str(path).partition("[*]")
        if star and root.isidentifier() and root not in lengths:
            found.append(f"lengths has no entry for {root}")
    return found


def _table_problems(tables: Any) -> list[str]:
    if not isinstance(tables, dict) or tables.keys() != {"status", "variables"}:
        return ["tables must be status and variables"]
    status, variables = tables["status"], tables["variables"]
    if not isinstance(status, dict) or status.keys() != _STATUS_KEYS:
        return [f"tables.status must have {', '.join(sorted(_STATUS_KEYS))}"]
    if not isinstance(variables, dict) or variables.keys() != {"prefix", "anchors"}:
        return ["tables.variables must have prefix and anchors"]
    found = []
    for flavour in sorted(_FLAVOURS):
        types = status["types"].get(flavour)
        if not isinstance(types, dict) or not set(types.values()) <= _TYPES:
            found.append(f"tables.status.types.{flavour} is not a mapping to {', '.join(sorted(_TYPES))}")
        if not isinstance(status["live"].get(flavour), list):
            found.append(f"tables.status.live.{flavour} is not a list")
    return found


def _build(data: dict[str, Any]) -> Catalog:
    values = {name: tuple(_source(source) for source in sources) for name, sources in data["values"].items()}
    status, variables = data["tables"]["status"], data["tables"]["variables"]
    paths = [
        path
        for sources in values.values()
        for source in sources
        for path in (*source.paths, *((source.when,) if source.when else ()))
    ]
    return Catalog(
        lengths=data["lengths"],
        values=values,
        status=StatusTable(
            prefix=status["prefix"],
            anchors=tuple(status["anchors"]),
            types=status["types"],
            live={flavour: frozenset(names) for flavour, names in status["live"].items()},
            copies=frozenset(status["copies"]),
        ),
        variables=VariableTable(variables["prefix"], tuple(variables["anchors"])),
        paths=tuple(dict.fromkeys((*paths, *data["lengths"].values()))),
    )


def _source(source: dict[str, Any]) -> Source:
    bits = source.get("bits")
    return Source(
        paths=tuple(source.get("paths", ())),
        symbol=source.get("symbol"),
        kind=source.get("kind"),
        status=_as_tuple(source.get("status", ())),
        variable=source.get("variable"),
        flavour=source.get("flavour"),
        least=_version(source.get("from")) or (),
        below=_version(source.get("below")),
        bits=(bits[0], bits[1]) if bits else None,
        scale=source.get("scale"),
        when=source.get("when"),
        settled=source.get("settled", False),
    )


def _as_tuple(given: str | list[str]) -> tuple[str, ...]:
    return (given,) if isinstance(given, str) else tuple(given)


def _version(text: str | None) -> tuple[int, ...] | None:
    return tuple(map(int, str(text).split("."))) if text is not None else None
