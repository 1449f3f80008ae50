"""Read ``probes/catalog/sql.yaml``, which lists the SQL sources of each metric."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Annotated, Final, Literal

from msgspec import Meta

from innoscope.common.data import catalog_path
from innoscope.common.schema import Entry, ServerEntry, read_yaml
from innoscope.metrics import registry

if TYPE_CHECKING:
    from pathlib import Path

KINDS: Final = ("status", "variable", "counter", "monitor", "formula")


class SourceEntry(ServerEntry, frozen=True):
    """One source of a metric's value, for servers in the version ranges. Exactly one of KINDS is set."""

    status: str | None = None
    variable: str | None = None
    counter: str | None = None
    monitor: str | None = None
    formula: Literal["classic_redo_limit", "change_buffer_limit"] | None = None  # FORMULAS in sql_plan.py
    line: re.Pattern[str] | None = None
    sum: bool = False
    scale: int | float = 1
    texts: tuple[str, ...] = ()
    when: str | None = None

    def __post_init__(self) -> None:
        """Check the constraints that the types cannot express. Raise ValueError if one is violated."""
        if len(self.names) != 1:
            raise ValueError(f"a source needs exactly one of {', '.join(KINDS)}")
        if (self.monitor is None) != (self.line is None):
            raise ValueError("line is required with monitor, and not allowed otherwise")
        if self.line is not None and not 1 <= self.line.groups <= 2:
            raise ValueError("line must have one or two groups")
        if self.sum and (self.line is None or self.line.groups != 1):
            raise ValueError("sum needs a line with one group")
        if self.texts and self.status is None and self.variable is None:
            raise ValueError("texts needs status or variable")

    @property
    def names(self) -> list[tuple[str, str]]:
        """Return ``(kind, name)`` for each of KINDS that is set."""
        names = (self.status, self.variable, self.counter, self.monitor, self.formula)
        return [(kind, name) for kind, name in zip(KINDS, names, strict=True) if name is not None]


class SeriesEntry(Entry, frozen=True):
    """One series and its sources."""

    metric: str
    any: Annotated[tuple[SourceEntry, ...], Meta(min_length=1)]
    labels: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Raise ValueError unless metrics.yaml declares this metric with ``sql`` among its sources."""
        if self.metric not in registry.default():
            raise ValueError(f"metric {self.metric!r} is not in metrics.yaml")
        metric = registry.default()[self.metric]
        if "sql" not in metric.sources:
            raise ValueError(f"sql is not among the sources of {metric.name}")
        if len(self.labels) != len(metric.labels):
            raise ValueError(f"{metric.name} has {len(metric.labels)} labels")


class SqlFile(Entry, frozen=True):
    """The contents of sql.yaml."""

    version: Literal[1]
    session: tuple[Annotated[str, Meta(pattern=r"\A\w+ = \w+\Z")], ...]
    metrics: tuple[SeriesEntry, ...]

    def __post_init__(self) -> None:
        """Raise ValueError if a series is listed more than once."""
        seen = set()
        for number, series in enumerate(self.metrics):
            if (series.metric, series.labels) in seen:
                raise ValueError(f"metrics[{number}]: duplicate series of {series.metric}")
            seen.add((series.metric, series.labels))


@dataclass(frozen=True, slots=True)
class SqlSource:
    """One source of a value: its kind (one of KINDS) and its name.

    For the kind ``monitor``, the name is a section, and ``line`` matches a line of that section. With
    ``sum``, the numbers in all matching lines are added up. With ``texts``, the value is 1 for these texts,
    else 0. With ``when``, the source has a value only while that system variable is ON.
    """

    kind: str
    name: str
    scale: float
    line: re.Pattern[str] | None
    sum: bool
    texts: tuple[str, ...]
    when: str | None
    servers: ServerEntry

    def fits(self, flavour: str, version: tuple[int, ...]) -> bool:
        """Return whether the source is valid for a server. An unknown version () is in no version range."""
        return self.servers.fits(flavour, version)


@dataclass(frozen=True, slots=True)
class SqlSeries:
    """One series and its sources, best first."""

    metric: str
    labels: tuple[str, ...]
    sources: tuple[SqlSource, ...]


@dataclass(frozen=True, slots=True)
class SqlCatalog:
    """The validated contents of sql.yaml. ``session`` holds the assignments for ``SET SESSION``."""

    entries: tuple[SqlSeries, ...]
    session: tuple[str, ...]


@cache
def default() -> SqlCatalog:
    """Return the installed catalog. Raise BadFile if it is invalid."""
    return load()


def load(path: Path | None = None) -> SqlCatalog:
    """Read and check a catalog, by default the installed one. Raise BadFile if it is invalid."""
    file = read_yaml(path or catalog_path("sql.yaml"), SqlFile)
    entries = (
        SqlSeries(series.metric, series.labels, tuple(map(_source, series.any))) for series in file.metrics
    )
    return SqlCatalog(tuple(entries), file.session)


def _source(entry: SourceEntry) -> SqlSource:
    [(kind, name)] = entry.names
    return SqlSource(kind, name, entry.scale, entry.line, entry.sum, entry.texts, entry.when, entry)
