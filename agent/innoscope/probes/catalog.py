"""Reading and checking ``probes/catalog/probes.yaml``: which function tells what, on which server."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from innoscope.common.data import catalog_path, read_yaml, reading

if TYPE_CHECKING:
    from pathlib import Path

ENTER: Final = "enter"
LEAVE: Final = "leave"
_FLAVOURS: Final = ("mysql", "mariadb")
_SITE_KEYS: Final = frozenset(
    {*_FLAVOURS, "functions", "symbols", "library", "at", "returns", "feeds", "absent", "without", "instead"}
)
_RANGE = re.compile(r"(\d+(?:\.\d+)*)(?:(\+)|-(\d+(?:\.\d+)*))?")


@dataclass(frozen=True, slots=True)
class Versions:
    """The versions of one flavour from ``first`` on, up to all that begin with ``last`` (None: no end)."""

    flavour: str
    first: tuple[int, ...]
    last: tuple[int, ...] | None

    def has(self, flavour: str, version: tuple[int, ...]) -> bool:
        """Whether this server is one of them."""
        if flavour != self.flavour or version < self.first:
            return False
        return self.last is None or version[: len(self.last)] <= self.last


@dataclass(frozen=True, slots=True)
class Value:
    """Where a program finds one value: ``arg`` N or the ``result``, of so many bits; or a ``constant``.

    ``labels`` maps numbers to label values.
    """

    arg: int | None = None
    bits: int = 64
    constant: int | str | None = None
    labels: dict[int, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Site:
    """What a probe attaches to on some servers."""

    versions: Versions
    at: tuple[str, ...]
    returns: str | None
    functions: tuple[str, ...] = ()
    symbols: tuple[str, ...] = ()
    shared_object: str | None = None  # the beginning of a mapped file's name; None: the executable
    values: dict[str, Value] = field(default_factory=dict)
    feeds: tuple[str, ...] = ()  # besides what the probe feeds everywhere
    absent: str | None = None  # why there is nothing to attach to
    without: str | None = None  # why, if the function is not found
    instead: str | None = None  # what tells it then


@dataclass(frozen=True, slots=True)
class Probe:
    """One probe, everywhere."""

    name: str
    family: str
    feeds: tuple[str, ...]
    values: tuple[str, ...]
    sites: tuple[Site, ...]
    limit: int | None = None
    weight: int = 1
    check: tuple[str, str] | None = None  # (metric of ours, counter of the server)
    asks: tuple[str, ...] = ()  # probes of whose calls its programs ask whether they run inside one

    def site(self, flavour: str, version: tuple[int, ...]) -> Site | None:
        """Where on this server; None where nothing is known."""
        return next((site for site in self.sites if site.versions.has(flavour, version)), None)

    def fed(self, flavour: str, version: tuple[int, ...]) -> frozenset[str]:
        """The metrics that get their numbers from it on this server."""
        site = self.site(flavour, version)
        return frozenset((*self.feeds, *(site.feeds if site is not None else ())))


@dataclass(frozen=True, slots=True)
class Family:
    """Probes that are switched together."""

    name: str
    source: str
    default: bool
    answers: str


@dataclass(frozen=True, slots=True)
class Catalog:
    """The whole file, checked. ``safe`` says why no exception can cross a function, by key."""

    families: dict[str, Family]
    probes: dict[str, Probe]
    safe: dict[str, str]

    def of(self, families: frozenset[str] | None = None) -> list[Probe]:
        """The probes of these families; of those on by default for None."""
        wanted = families or frozenset(name for name, family in self.families.items() if family.default)
        return [probe for probe in self.probes.values() if probe.family in wanted]

    def feeding(self, metrics: frozenset[str], flavour: str, version: tuple[int, ...]) -> list[Probe]:
        """Of those on by default, who feeds these metrics on that server, and whom they ask about."""
        default = self.of()
        feeding = {probe.name for probe in default if metrics & probe.fed(flavour, version)}
        asked = {name for name in feeding for name in self.probes[name].asks}
        return [probe for probe in default if probe.name in feeding | asked]


@cache
def default_catalog() -> Catalog:
    """The catalog that comes with the program."""
    return load(catalog_path("probes.yaml"))


def load(path: Path) -> Catalog:
    """Read and check. Raises BadFile with what is wrong and where."""
    with reading(path):
        return _catalog(read_yaml(path))


def _catalog(document: dict[str, Any]) -> Catalog:
    families = {name: Family(name=name, **family) for name, family in document["families"].items()}
    safe = document["safe"]
    probes = {name: _probe(name, entry, safe) for name, entry in document["probes"].items()}
    for probe in probes.values():
        if probe.family not in families:
            raise ValueError(f"probe {probe.name}: no family {probe.family}")
        if unknown := set(probe.asks) - set(probes):
            raise ValueError(f"probe {probe.name}: asks about {unknown.pop()}, which is none")
    return Catalog(families, probes, safe)


def _probe(name: str, entry: dict[str, Any], safe: dict[str, str]) -> Probe:
    values = tuple(entry.get("values", ()))
    check = entry.get("check")
    try:
        sites = tuple(_site(site, entry, values, safe) for site in entry["sites"])
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"probe {name}: {error}") from error
    return Probe(
        name=name,
        family=entry["family"],
        feeds=tuple(entry["feeds"]),
        values=values,
        sites=sites,
        limit=entry.get("limit"),
        weight=_weight(entry.get("weight", 1)),
        check=(check["metric"], check["counter"]) if check else None,
        asks=tuple(entry.get("asks", ())),
    )


def _weight(value: object) -> int:
    if not isinstance(value, int) or value < 1:
        raise ValueError(f"weight {value!r} is no whole number from 1 on")
    return value


def _site(
    entry: dict[str, Any], probe: dict[str, Any], values: tuple[str, ...], safe: dict[str, str]
) -> Site:
    unknown = set(entry) - _SITE_KEYS - set(values)
    if unknown:
        raise ValueError(f"unknown keys {', '.join(sorted(unknown))}")
    at = tuple(entry.get("at", probe["at"]))
    returns = entry.get("returns", probe.get("returns"))
    attaches = "absent" not in entry
    if attaches and LEAVE in at and returns not in safe:
        raise ValueError("attaches at a return without saying why no exception can cross it")
    return Site(
        versions=_versions(entry),
        at=at,
        returns=returns,
        functions=tuple(entry.get("functions", ())),
        symbols=tuple(entry.get("symbols", ())),
        shared_object=entry.get("library"),
        values={key: _value(entry[key]) for key in values if key in entry},
        feeds=tuple(entry.get("feeds", ())),
        absent=entry.get("absent"),
        without=entry.get("without"),
        instead=entry.get("instead"),
    )


def _versions(entry: dict[str, Any]) -> Versions:
    [flavour] = [key for key in _FLAVOURS if key in entry]
    matched = _RANGE.fullmatch(str(entry[flavour]))
    if not matched:
        raise ValueError(f"{entry[flavour]!r} is no range of versions")
    first, open_end, last = matched.groups()
    return Versions(flavour, _version(first), None if open_end else _version(last or first))


def _version(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(".")))


def _value(entry: dict[str, Any]) -> Value:
    labels = {int(number): str(label) for number, label in entry.get("labels", {}).items()}
    match entry:
        case {"arg": int(arg)}:
            return Value(arg=arg, bits=entry.get("bits", 64), labels=labels)
        case {"result": int(bits)}:
            return Value(bits=bits, labels=labels)
        case {"label": str(label)}:
            return Value(constant=label)
        case {"is": int(number)}:
            return Value(constant=number)
    raise ValueError(f"{entry} says not where the value is")
