"""Parse ``probes/catalog/toggles.yaml``. Checks are strict, because its values are written into servers."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Final, Literal

from msgspec import Meta, field

from innoscope.common.schema import Entry, ServerEntry
from innoscope.toggles.model import (
    Assignment,
    Backend,
    Domain,
    Raw,
    Risk,
    Toggle,
    ToggledVariable,
    ToggleGeneration,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

_Kind = Literal["sql", "memory"]
_Name = Annotated[str, Meta(pattern=r"\A[a-z][a-z0-9_]{0,63}\Z")]
_Symbol = Annotated[str, Meta(pattern=r"\A[A-Za-z_][A-Za-z0-9_]{0,63}\Z")]
_Word = _Name | bool  # YAML parses unquoted on and off as booleans
_SIZES: Final = {"unsigned": (1, 4, 8), "signed": (1, 4, 8), "float": (4, 8)}
_LARGEST: Final = 2.0**64
_SWITCH: Final = ("on", "off")

#: Symbols and system variables that must never be written in memory, regardless of the catalog.
NEVER_RAW: Final = re.compile(
    r"recv_\w*|btr_\w*|ibuf\w*|\w*(?:doublewrite|dblwr|hash_index|flush_method|dirty_pages|checksum)\w*"
    r"|\w*buf_pool_modified\w*|\w*io_capacity\w*|\w*shutdown\w*|srv_force_recovery|innodb_force_recovery"
)
#: Symbols that are safe to write only on some servers: symbol -> (flavour, first unsafe version).
#: Like NEVER_RAW, this limits what the catalog may contain, so it is not in the catalog.
_ONLY_BELOW: Final[Mapping[str, tuple[str, tuple[int, ...]]]] = {
    "srv_startup_is_before_trx_rollback_phase": ("mysql", (5, 6)),
}


class _Numbers(Entry, frozen=True):
    low: float
    high: float
    unit: str

    def __post_init__(self) -> None:
        _check_numbers(low=self.low, high=self.high)
        _check_lines(unit=self.unit)
        if not self.low < self.high:
            raise ValueError("low must be below high")


class _Setting(Entry, frozen=True):
    scale: float | None = None
    low: float | None = None
    high: float | None = None

    def check(self, domain: Domain) -> None:
        """Raise ValueError if the scale or the limits do not fit the toggle's values."""
        _check_numbers(scale=self.scale, low=self.low, high=self.high)
        if self.scale is not None and (self.scale <= 0 or domain.words):
            raise ValueError("scale must be above 0, and requires a toggle with numbers")
        if domain.low is None or domain.high is None:
            if (self.low, self.high) != (None, None):
                raise ValueError("low and high require a toggle with numbers")
        elif not domain.low <= _or(self.low, domain.low) < _or(self.high, domain.high) <= domain.high:
            raise ValueError("low and high must be within the toggle's range")


class _SqlSetting(_Setting, frozen=True):
    values: dict[_Word, bool | int | float | _Symbol] | None = None
    bound: Literal["raise", "lower"] | None = None
    to: int | None = None

    def assignment(self, name: str, domain: Domain) -> Assignment:
        """Return the assignment that the entry describes. Raise ValueError if the entry is invalid."""
        self.check(domain)
        if self.bound is not None and domain.words:
            raise ValueError("bound requires a toggle with numbers")
        if self.to is not None and self.bound is None:
            raise ValueError("to requires bound")
        default: dict[str, Raw] = {word: word for word in domain.words}
        values = _values(self.values, domain, {"on": True, "off": False} if _is_switch(domain) else default)
        return Assignment(ToggledVariable(name), values, self.scale, self.low, self.high, self.bound, self.to)


class _MemorySetting(_Setting, frozen=True, kw_only=True):
    kind: Literal["unsigned", "signed", "float"]
    size: Literal[1, 4, 8]
    plausible: tuple[float, float]
    variable: _Name | None = None
    values: dict[_Word, int | float] | None = None

    def __post_init__(self) -> None:
        if self.size not in _SIZES[self.kind]:
            raise ValueError(f"size must be one of {', '.join(map(str, _SIZES[self.kind]))}")
        low, high = self.plausible
        least, most = _range(self.kind, self.size)
        if not least <= low < high <= most:
            raise ValueError(f"plausible is outside the range of {self.kind} numbers of {self.size} bytes")

    def assignment(self, name: str, domain: Domain) -> Assignment:
        """Return the assignment that the entry describes. Raise ValueError if the entry is invalid."""
        self.check(domain)
        if self.values is None and domain.words and not _is_switch(domain):
            raise ValueError("values is missing")
        values = _values(self.values, domain, {"on": 1, "off": 0})
        self._check_plausible(values, domain)
        setting = ToggledVariable(name, self.kind, self.size, self.plausible, self.variable)
        return Assignment(setting, values, self.scale, self.low, self.high)

    def _check_plausible(self, values: Mapping[str, Raw] | None, domain: Domain) -> None:
        """Raise ValueError unless all values to write are plausible: undo does not change other values."""
        low, high = self.plausible
        written = [raw for raw in (values or {}).values() if not isinstance(raw, str)]
        if domain.low is not None and domain.high is not None:
            limits = (_or(self.low, domain.low), _or(self.high, domain.high))
            written = [limit * (self.scale or 1.0) for limit in limits]
        for value in written:
            if not low <= value <= high:
                raise ValueError(f"values: {value:g} is outside the plausible range")


class _Backend(Entry, frozen=True):
    sql: Annotated[dict[_Name, _SqlSetting], Meta(min_length=1)] | None = None
    memory: Annotated[dict[_Symbol, _MemorySetting], Meta(min_length=1)] | None = None
    note: str | None = None

    def __post_init__(self) -> None:
        if (self.sql is None) == (self.memory is None):
            raise ValueError("needs one of sql, memory")
        if self.sql is not None and all(one.bound for one in self.sql.values()):
            raise ValueError("at least one setting must be without bound")
        _check_lines(note=self.note)

    @property
    def kind(self) -> _Kind:
        """Return the kind of backend."""
        return "memory" if self.sql is None else "sql"

    def backend(self, domain: Domain) -> Backend:
        """Return the backend that the entry describes, for a toggle with these values.

        Raise ValueError if one of its settings is invalid.
        """
        assignments = []
        for name, setting in (self.sql or self.memory or {}).items():
            try:
                assignments.append(setting.assignment(name, domain))
            except ValueError as error:
                raise ValueError(f"{self.kind}.{name}: {error}") from error
        return Backend(self.kind, tuple(assignments), note=self.note)


class _Servers(ServerEntry, frozen=True):
    backends: tuple[_Backend, ...] = ()
    refused: str | None = None
    never: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if len(self.ranges) != 1:
            raise ValueError("needs a version range of either mysql or mariadb")
        if bool(self.backends) == (self.refused is not None):
            raise ValueError("needs either backends or refused")
        kinds = [backend.kind for backend in self.backends]
        if len(set(kinds)) != len(kinds):
            raise ValueError("duplicate kind in backends")
        if unknown := self.never.keys() - {"sql", "memory"}:
            raise ValueError(f"never: unknown backend {min(unknown)!r}")
        if both := self.never.keys() & set(kinds):
            raise ValueError(f"{min(both)} is in both backends and never")
        _check_lines(refused=self.refused, **self.never)
        [(flavour, versions)] = self.ranges.items()
        if versions.last is None:
            raise ValueError("the version range needs an upper bound: future servers have not been reviewed")
        for backend in self.backends:
            for name, setting in (backend.memory or {}).items():
                _check_memory(name, setting.variable, flavour, versions.last)

    def generation(self, domain: Domain) -> ToggleGeneration:
        """Return the generation that the entry describes, for a toggle with these values.

        Raise ValueError if one of its backends is invalid.
        """
        [(flavour, versions)] = self.ranges.items()
        backends = []
        for number, entry in enumerate(self.backends):
            try:
                backends.append(entry.backend(domain))
            except ValueError as error:
                raise ValueError(f"backends[{number}].{error}") from error
        return ToggleGeneration(flavour, versions, tuple(backends), self.refused, self.never)


class _Toggle(Entry, frozen=True):
    title: str
    what: str
    risk: Risk
    values: Literal["switch"] | tuple[_Word, ...] | _Numbers
    servers: Annotated[tuple[_Servers, ...], Meta(min_length=1)]
    also: str | None = None
    undo: str | None = None
    cluster: str | None = None

    def __post_init__(self) -> None:
        _check_lines(title=self.title, what=self.what, also=self.also, undo=self.undo, cluster=self.cluster)
        self.toggle("")  # checks the servers' entries against the values
        for number, one in enumerate(self.servers):
            for other in self.servers[:number]:
                _check_no_overlap(one, other)

    def domain(self) -> Domain:
        """Return the values that the toggle accepts. Raise ValueError if they are invalid."""
        if isinstance(self.values, _Numbers):
            return Domain(low=self.values.low, high=self.values.high, unit=self.values.unit)
        words = _SWITCH if self.values == "switch" else tuple(map(_word, self.values))
        if len(words) < 2 or len(set(words)) != len(words):
            raise ValueError("values: needs at least two words, without duplicates")
        return Domain(words=words)

    def toggle(self, name: str) -> Toggle:
        """Return the toggle that the entry describes. Raise ValueError if the entry is invalid."""
        domain = self.domain()
        generations = []
        for number, servers in enumerate(self.servers):
            try:
                generations.append(servers.generation(domain))
            except ValueError as error:
                raise ValueError(f"servers[{number}].{error}") from error
        texts = (self.also, self.undo, self.cluster)
        return Toggle(name, self.title, self.what, self.risk, domain, tuple(generations), *texts)


class ToggleCatalogFile(Entry, frozen=True):
    """The contents of toggles.yaml."""

    version: Literal[1]
    toggles: Annotated[dict[_Name, _Toggle], Meta(min_length=1)]

    def by_name(self) -> dict[str, Toggle]:
        """Return the toggles by name, in file order."""
        return {name: entry.toggle(name) for name, entry in self.toggles.items()}


def _check_memory(name: str, variable: str | None, flavour: str, last: tuple[int, ...]) -> None:
    """Raise ValueError if writing this symbol is known to be harmful, regardless of the rest of the entry."""
    if NEVER_RAW.fullmatch(name) or NEVER_RAW.fullmatch(variable or ""):
        raise ValueError(f"{name} must never be written to memory")
    if name in _ONLY_BELOW:
        only, first = _ONLY_BELOW[name]
        if flavour != only or last >= first[: len(last)]:
            raise ValueError(f"{name} must not be written to memory on these servers")


def _check_no_overlap(one: _Servers, other: _Servers) -> None:
    for flavour, versions in one.ranges.items():
        if flavour in other.ranges and versions.overlaps(other.ranges[flavour]):
            raise ValueError(f"servers: two entries for {flavour} {versions} and {other.ranges[flavour]}")


def _is_switch(domain: Domain) -> bool:
    return domain.words == _SWITCH


def _word(word: str | bool) -> str:
    if isinstance(word, bool):
        return "on" if word else "off"
    return word


def _values(
    given: Mapping[str | bool, Raw] | None, domain: Domain, default: Mapping[str, Raw]
) -> dict[str, Raw] | None:
    """Return the value to write for each word; None if the toggle's value is a number.

    Raise ValueError if the words do not match the toggle's.
    """
    if not domain.words:
        if given is not None:
            raise ValueError("values: the toggle takes a number")
        return None
    if given is None:
        return dict(default)
    made = {_word(word): raw for word, raw in given.items()}
    unknown = made.keys() - set(domain.words)
    if unknown or not made or len(made) != len(given):
        raise ValueError(f"values: {min(unknown, default='a duplicate')} is not among the toggle's words")
    if _is_switch(domain) and len(made) != len(_SWITCH):
        raise ValueError("values: needs on and off")
    _check_numbers(**{word: raw for word, raw in made.items() if not isinstance(raw, str)})
    return made


def _range(kind: str, size: int) -> tuple[float, float]:
    if kind == "float":
        return -_LARGEST, _LARGEST
    most = 2.0 ** (8 * size - (kind == "signed"))
    return (0.0 if kind == "unsigned" else -most), most - 1


def _or(number: float | None, default: float) -> float:
    return default if number is None else number


def _check_numbers(**numbers: float | None) -> None:
    for name, number in numbers.items():
        if number is not None and not abs(number) <= _LARGEST:  # also true for NaN
            raise ValueError(f"{name} must be a number up to 2^64")


def _check_lines(**texts: str | None) -> None:
    for name, text in texts.items():
        if text is not None and not (text.strip() and text.isprintable()):
            raise ValueError(f"{name} must be one line of text")
