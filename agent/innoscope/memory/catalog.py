"""Read ``probes/catalog/memory.yaml``, which locates values in the memory of each server version."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final, Literal

from msgspec import Meta

from innoscope.common.data import catalog_path
from innoscope.common.schema import Entry, ServerEntry, read_yaml

if TYPE_CHECKING:
    from pathlib import Path

_Value = Annotated[str, Meta(pattern=r"\A[a-z][a-z0-9_]*(?:\.[a-z_]+)?\Z")]
_Path = Annotated[str, Meta(pattern=r"\A\w+(?:\.\w+|\[(?:\d+|\*)\])*\Z")]
_Type = Literal["bool", "uint32", "uint64", "int32", "int64", "float64"]
_FLAVOURS: Final = {"mysql", "mariadb"}


class Source(ServerEntry, frozen=True):
    """One source of a value; exactly one of ``paths``, ``symbol``, ``status`` and ``variable`` is set."""

    paths: tuple[_Path, ...] = ()
    symbol: str | None = None
    kind: Literal["unsigned", "signed", "float"] | None = None
    status: str | tuple[str, ...] = ()
    variable: str | None = None
    bits: tuple[int, int] | None = None
    scale: float | None = None
    when: _Path | None = None
    settled: bool = False

    def __post_init__(self) -> None:
        """Check the constraints that the types cannot express. Raises ValueError."""
        if sum(map(bool, (self.paths, self.symbol, self.status, self.variable))) != 1:
            raise ValueError("needs exactly one of paths, symbol, status, variable")
        if (self.symbol is None) != (self.kind is None):
            raise ValueError("kind is required with symbol, and not allowed otherwise")
        if self.bits is not None and not 0 <= self.bits[0] < self.bits[1] <= 64:
            raise ValueError("bits must be [first, end)")

    @property
    def statuses(self) -> tuple[str, ...]:
        """Return the names of the status variables whose sum is the value."""
        return (self.status,) if isinstance(self.status, str) else self.status


class StatusTable(Entry, frozen=True):
    """Location and format of the table of status variables. ``types`` is ``{flavour: {type code: type}}``."""

    prefix: str
    anchors: tuple[str, ...]
    types: dict[str, dict[int, _Type]]
    live: dict[str, frozenset[str]]
    copies: frozenset[str]

    def __post_init__(self) -> None:
        """Check that ``types`` and ``live`` contain both flavours. Raises ValueError."""
        if self.types.keys() != _FLAVOURS or self.live.keys() != _FLAVOURS:
            raise ValueError("types and live need mysql and mariadb, and no others")


class VariableTable(Entry, frozen=True):
    """The location of the table of system variables."""

    prefix: str
    anchors: tuple[str, ...]


class Tables(Entry, frozen=True):
    """The server's own tables of variables."""

    status: StatusTable
    variables: VariableTable


class Catalog(Entry, frozen=True):
    """The contents of memory.yaml. ``lengths`` is ``{pointer: variable with the number of elements}``."""

    version: Literal[1]
    lengths: dict[str, str]
    values: dict[_Value, Annotated[tuple[Source, ...], Meta(min_length=1)]]
    tables: Tables

    def __post_init__(self) -> None:
        """Check that ``lengths`` has an entry for each pointer to an array. Raises ValueError."""
        for path in self.paths:
            root, star, _ = path.partition("[*]")
            if star and root.isidentifier() and root not in self.lengths:
                raise ValueError(f"{path}: the number of elements of {root} is missing in lengths")

    @property
    def paths(self) -> tuple[str, ...]:
        """Return all paths that need debug information, in file order."""
        sources = [source for several in self.values.values() for source in several]
        paths = [path for source in sources for path in (*source.paths, source.when) if path]
        return tuple(dict.fromkeys((*paths, *self.lengths.values())))


def load(path: Path | None = None) -> Catalog:
    """Read and check the catalog. Raises BadFile."""
    return read_yaml(path or catalog_path("memory.yaml"), Catalog)
