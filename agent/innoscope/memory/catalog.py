"""Read ``probes/catalog/memory.yaml``, which locates values in the memory of each server version."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final, Literal

from msgspec import Meta

from innoscope.common.data import catalog_path
from innoscope.common.schema import Citation, Entry, ServerEntry, read_yaml

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_Value = Annotated[str, Meta(pattern=r"\A[a-z][a-z0-9_]*(?:\.[a-z_]+)?\Z")]
_Path = Annotated[str, Meta(pattern=r"\A\w+(?:\.\w+|\[(?:\d+|\*)\])*\Z")]
_Member = Annotated[str, Meta(pattern=r"\A\w+(?:\.\w+)+\Z")]
_Type = Literal["bool", "uint32", "uint64", "int32", "int64", "float64"]
_FLAVOURS: Final = {"mysql", "mariadb"}


_Range = tuple[int, int]
#: The clock of the timestamps in an array: Unix time or CLOCK_MONOTONIC. ``scale`` converts them to seconds.
Clock = Literal["unix", "monotonic"]


class BitField(Entry, frozen=True):
    """A range of bits in the number at ``path``."""

    path: _Path
    bits: _Range

    def __post_init__(self) -> None:
        """Raise ValueError unless the bit range is valid."""
        _check_bits(self.bits)


class MemorySource(ServerEntry, frozen=True):
    """One source of a value; exactly one of ``paths``, ``symbol``, ``status`` and ``variable`` is set."""

    paths: tuple[_Path, ...] = ()
    minus: tuple[_Path, ...] = ()
    symbol: str | None = None
    kind: Literal["unsigned", "signed", "float"] | None = None
    status: str | tuple[str, ...] = ()
    variable: str | None = None
    bits: _Range | None = None
    plus: BitField | None = None
    unit: Literal["sn"] | None = None
    scale: float | None = None
    when: _Path | None = None
    least: _Member | None = None
    age_where: _Path | None = None
    clock: Clock = "unix"
    reserve: _Path | None = None
    per: str | None = None
    settled: bool = False
    source: Citation | None = None

    def __post_init__(self) -> None:
        """Raise ValueError if a constraint that the types cannot express is violated."""
        if sum(map(bool, (self.paths, self.symbol, self.status, self.variable))) != 1:
            raise ValueError("needs exactly one of paths, symbol, status, variable")
        if (self.symbol is None) != (self.kind is None):
            raise ValueError("kind is required with symbol, and not allowed otherwise")
        if self.bits is not None:
            _check_bits(self.bits)
        if self.plus is not None and not self.paths:
            raise ValueError("plus requires paths")
        if self.minus and not self.paths:
            raise ValueError("minus requires paths")
        if self.per is not None and self.symbol is None:
            raise ValueError("per requires symbol")
        if (self.least or self.age_where) and len(self.paths) != 1:
            raise ValueError("least and age_where need exactly one path")
        if self.clock != "unix" and not self.age_where:
            raise ValueError("clock requires age_where")
        if self.least and self.age_where:
            raise ValueError("least and age_where exclude each other")

    @property
    def statuses(self) -> tuple[str, ...]:
        """Return the names of the status variables whose sum is the value."""
        return (self.status,) if isinstance(self.status, str) else self.status


class StatusTable(Entry, frozen=True):
    """The location and format of the status variable table. ``types`` is ``{flavour: {type code: type}}``."""

    prefix: str
    anchors: tuple[str, ...]
    types: dict[str, dict[int, _Type]]
    live: dict[str, frozenset[str]]
    copies: frozenset[str]

    def __post_init__(self) -> None:
        """Raise ValueError unless ``types`` and ``live`` have exactly the two flavours as keys."""
        if self.types.keys() != _FLAVOURS or self.live.keys() != _FLAVOURS:
            raise ValueError("types and live must have the keys mysql and mariadb, and no others")


class VariableTable(Entry, frozen=True):
    """The location of the system variable table."""

    prefix: str
    anchors: tuple[str, ...]


class Tables(Entry, frozen=True):
    """The server's own variable tables."""

    status: StatusTable
    variables: VariableTable


class MemoryCatalog(Entry, frozen=True):
    """The contents of memory.yaml.

    ``lengths`` is ``{pointer: variable with the number of elements}``, and ``ends`` is ``{path of the pointer
    to the first element: path of the pointer past the last one}``.
    """

    version: Literal[1]
    lengths: dict[str, str]
    ends: dict[_Path, _Path]
    values: dict[_Value, Annotated[tuple[MemorySource, ...], Meta(min_length=1)]]
    tables: Tables

    def __post_init__(self) -> None:
        """Raise ValueError unless ``lengths`` has an entry for each variable that is used as an array."""
        for path in self.paths:
            root, star, _ = path.partition("[*]")
            if star and root.isidentifier() and root not in self.lengths:
                raise ValueError(f"{path}: the number of elements of {root} is missing from lengths")

    @property
    def _sources(self) -> Iterator[MemorySource]:
        return (source for several in self.values.values() for source in several)

    @property
    def symbols(self) -> set[str]:
        """Return the names of the global variables that are read without debug information."""
        return {name for one in self._sources for name in (one.symbol, one.per) if name}

    @property
    def paths(self) -> tuple[str, ...]:
        """Return the distinct paths that start at a global variable and need debug information.

        The order is always the same, because the cache's key depends on it.
        """
        parts = [one.plus.path for one in self._sources if one.plus]
        paths = [
            path
            for one in self._sources
            for path in (*one.paths, *one.minus, one.when, one.age_where, one.reserve)
            if path
        ] + parts
        return tuple(dict.fromkeys((*paths, *self.lengths.values(), *self.ends.values())))

    @property
    def types(self) -> tuple[str, ...]:
        """Return all paths that start at a type, in file order. Such paths need debug information."""
        return tuple(dict.fromkeys(one.least for one in self._sources if one.least))


def _check_bits(bits: _Range) -> None:
    if not 0 <= bits[0] < bits[1] <= 64:
        raise ValueError("bits must be [first, end)")


def load(path: Path | None = None) -> MemoryCatalog:
    """Read and check the catalog. Raise BadFile if it cannot be read or is invalid."""
    return read_yaml(path or catalog_path("memory.yaml"), MemoryCatalog)
