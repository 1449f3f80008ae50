"""Reading and checking ``probes/catalog/sql.yaml``: which statement gives which metric."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from innoscope.common.data import catalog_path, read_yaml, reading
from innoscope.common.errors import BadFile
from innoscope.metrics import registry

if TYPE_CHECKING:
    from pathlib import Path

    from innoscope.metrics.registry import Registry

KINDS: Final = ("status", "variable", "counter", "monitor", "formula")
#: Those that sql_plan.py can compute.
FORMULAS: Final = ("classic_redo_limit",)
_ENTRY_KEYS: Final = frozenset({"metric", "labels", "any"})
_SOURCE_KEYS: Final = frozenset({*KINDS, "line", "scale", "only"})


@dataclass(frozen=True, slots=True)
class Source:
    """One way to learn a number: ``name`` of that ``kind``. A monitor's is the section, with ``line``."""

    kind: str
    name: str
    scale: float = 1
    line: re.Pattern[str] | None = None
    only: tuple[tuple[str, tuple[int, ...]], ...] = ()

    def fits(self, flavour: str, version: tuple[int, ...]) -> bool:
        """Whether the number is right on that server; one of an unknown version is taken for an old one."""
        return not self.only or any(flavour == name and version >= least for name, least in self.only)


@dataclass(frozen=True, slots=True)
class Entry:
    """One series and its sources, the best first."""

    metric: str
    labels: tuple[str, ...]
    sources: tuple[Source, ...]


@dataclass(frozen=True, slots=True)
class Catalog:
    """The whole file, checked. ``session`` are assignments for ``SET SESSION``."""

    entries: tuple[Entry, ...]
    session: tuple[str, ...]


@cache
def default() -> Catalog:
    """The catalog that is installed with the program."""
    return load()


def load(path: Path | None = None) -> Catalog:
    """Read and check the file; BadFile names the first problem."""
    path = path or catalog_path("sql.yaml")
    data = read_yaml(path)
    with reading(path):
        found = problems(data, registry.default())
        if found:
            raise BadFile(f"{path}: {found[0]}" + (f" (and {len(found) - 1} more)" if found[1:] else ""))
        entries = tuple(
            Entry(body["metric"], tuple(body.get("labels", ())), tuple(map(_source, body["any"])))
            for body in data["metrics"]
        )
        return Catalog(entries, tuple(data["session"]))


def _source(body: dict[str, Any]) -> Source:
    kind = next(kind for kind in KINDS if kind in body)
    only = tuple(
        (flavour, tuple(map(int, least.split(".")))) for flavour, least in body.get("only", {}).items()
    )
    line = re.compile(body["line"]) if "line" in body else None
    return Source(kind, body[kind], body.get("scale", 1), line, only)


def problems(data: Any, metrics: Registry) -> list[str]:
    """What is wrong with a parsed sql.yaml, in words; empty when nothing is."""
    if not isinstance(data, dict) or not isinstance(data.get("metrics"), list):
        return ["metrics must be a list"]
    found = [f"unknown key {key!r}" for key in data.keys() - {"version", "session", "metrics"}]
    if data.get("version") != 1:
        found.append("version is not 1")
    session = data.get("session")
    if not isinstance(session, list) or not all(re.fullmatch(r"\w+ = \w+", str(item)) for item in session):
        found.append("session is not a list of 'variable = value'")
    seen: set[tuple[str, tuple[str, ...]]] = set()
    for number, body in enumerate(data["metrics"], 1):
        wrong = _entry_problems(body, metrics)
        if not wrong:
            key = (body["metric"], tuple(body.get("labels", ())))
            wrong = [f"{key[0]} is there twice"] if key in seen else []
            seen.add(key)
        found += [f"entry {number}: {text}" for text in wrong]
    return found


def _entry_problems(body: Any, metrics: Registry) -> list[str]:
    if not isinstance(body, dict) or body.get("metric") not in metrics:
        return ["is not a mapping with a metric of metrics.yaml"]
    metric = metrics[body["metric"]]
    found = [f"unknown key {key!r}" for key in body.keys() - _ENTRY_KEYS]
    if "sql" not in metric.sources:
        found.append(f"sql is not among the sources of {metric.name}")
    labels = body.get("labels", [])
    if len(labels) != len(metric.labels):
        found.append(f"{metric.name} has {len(metric.labels)} labels")
    if not isinstance(body.get("any"), list) or not body["any"]:
        return [*found, "any must be a list of sources"]
    for source in body["any"]:
        found += _source_problems(source)
    return found


def _source_problems(body: Any) -> list[str]:
    if not isinstance(body, dict) or sum(kind in body for kind in KINDS) != 1:
        return [f"a source has exactly one of {', '.join(KINDS)}"]
    found = [f"unknown key {key!r}" for key in body.keys() - _SOURCE_KEYS]
    if "formula" in body and body["formula"] not in FORMULAS:
        found.append(f"there is no formula {body['formula']}")
    if ("monitor" in body) != ("line" in body):
        found.append("a monitor source, and only that, has a line")
    try:
        if not 1 <= re.compile(body.get("line", "()")).groups <= 2:
            found.append("a line has one or two groups")
    except re.error as error:
        found.append(f"bad pattern {body['line']!r}: {error}")
    return found
