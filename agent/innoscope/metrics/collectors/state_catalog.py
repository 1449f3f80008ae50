"""Read ``probes/catalog/state.yaml``: queries for the state of replication, clusters and transactions."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Annotated, Final, Literal

from msgspec import Meta

from innoscope.common.data import catalog_path
from innoscope.common.schema import Entry, ServerEntry, read_yaml
from innoscope.metrics import registry

if TYPE_CHECKING:
    from pathlib import Path

#: In a label value, this text stands for the name of the row.
ROW: Final = "{}"


class StateStatement(ServerEntry, frozen=True, kw_only=True):
    """The SQL statement of a query for a range of server versions."""

    sql: str


class ColumnSeries(Entry, frozen=True):
    """A series, and the column that provides its value: the first of ``columns`` that the result contains."""

    metric: str
    columns: Annotated[tuple[str, ...], Meta(min_length=1)]
    labels: tuple[str, ...] = ()
    texts: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Raise ValueError unless metrics.yaml declares the metric with ``state`` among its sources."""
        if self.metric not in registry.default():
            raise ValueError(f"metric {self.metric!r} is not in metrics.yaml")
        metric = registry.default()[self.metric]
        if "state" not in metric.sources:
            raise ValueError(f"state is not among the sources of {metric.name}")
        if len(self.labels) != len(metric.labels):
            raise ValueError(f"{metric.name} has {len(metric.labels)} labels")


class StateQuery(Entry, frozen=True):
    """A query: its statement for each range of server versions, and the series of each row."""

    servers: Annotated[tuple[StateStatement, ...], Meta(min_length=1)]
    series: Annotated[tuple[ColumnSeries, ...], Meta(min_length=1)]
    row: tuple[str, ...] = ()
    skip: str | None = None
    crowd: int | None = None

    def statement(self, flavour: str, version: tuple[int, ...]) -> str | None:
        """Return the statement for a server; None if there is none."""
        return next((one.sql for one in self.servers if one.fits(flavour, version)), None)


class StateCatalog(Entry, frozen=True):
    """The contents of state.yaml. ``session`` holds the assignments for ``SET SESSION``."""

    version: Literal[1]
    session: tuple[Annotated[str, Meta(pattern=r"\A\w+ = [\w.]+\Z")], ...]
    queries: dict[str, StateQuery]
    heartbeat: StateQuery


@cache
def default() -> StateCatalog:
    """Return the installed catalog. Raise BadFile if it is invalid."""
    return load()


def load(path: Path | None = None) -> StateCatalog:
    """Read and check a catalog, by default the installed one. Raise BadFile if it is invalid."""
    return read_yaml(path or catalog_path("state.yaml"), StateCatalog)
