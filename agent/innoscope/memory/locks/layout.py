"""Where a server's memory has its connections, metadata locks and InnoDB's waits: owners.yaml and DWARF."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from innoscope import _native
from innoscope.common.cache import Cache
from innoscope.common.data import catalog_path, read_yaml
from innoscope.common.errors import BadFile
from innoscope.memory import layout as layouts

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from innoscope._native import Member
    from innoscope.target.model import Target

#: Layouts of some builds.
_CACHE: Final = Cache("owners", 64)
#: Words of a part that are no paths.
_WORDS: Final = frozenset({"walk", "tickets", "namespaces", "cells"})
_PARTS: Final = ("sessions", "metadata", "latches")
#: The beginning of the tables of virtual functions by which objects of a class are told.
TICKETS: Final = "_ZTV10MDL_ticket"


@dataclass(frozen=True, slots=True)
class Part:
    """``words`` as in the catalog, ``members`` by name; ``roots`` are the addresses of their variables."""

    words: Mapping[str, Any]
    members: Mapping[str, Member]
    roots: Mapping[str, int]

    def offset(self, name: str) -> int:
        """From the begin of its type."""
        return self.members[name].offsets[0]

    def size(self, name: str) -> int:
        """Bytes."""
        return self.members[name].size


@dataclass(frozen=True, slots=True)
class Anatomy:
    """The parts that this build has; a part is None where one of its paths is not known, ``why`` says it."""

    sessions: Part | None = None
    metadata: Part | None = None
    latches: Part | None = None
    tickets: int | None = None
    why: Mapping[str, str] = field(default_factory=dict)


class Memory:
    """Reads of one process; None and 0 where nothing is mapped."""

    def __init__(self, pid: int) -> None:
        self._pid = pid

    def many(self, places: Sequence[tuple[int, int]]) -> list[bytes | None]:
        """The bytes at each ``(address, size)``."""
        return _native.read_many(self._pid, places)

    def numbers(self, addresses: Sequence[int], size: int = 8) -> list[int]:
        """An unsigned number at each address."""
        return [int.from_bytes(raw or b"", "little") for raw in self.many([(one, size) for one in addresses])]

    def number(self, address: int, size: int = 8) -> int:
        """One of them."""
        return self.numbers([address], size)[0]


def learn(target: Target) -> Anatomy:
    """Of a running server: a second or two for one with much debug information, at the first time only.

    Raises NoSuchProcess, NoRights or BadFile.
    """
    generation = _generation(target)
    if generation is None:
        return Anatomy()
    paths = sorted(set(_paths(generation)))
    names = sorted({layouts.root(path) for path in paths} | {TICKETS})
    known = layouts.learn(target, names, (), layouts.Debug(), _CACHE, types=paths)
    parts: dict[str, Part] = {}
    why: dict[str, str] = {}
    for name in _PARTS:
        body = generation.get(name, {})
        missing = [path for path in _of(body) if path not in known.members]
        if missing:
            why[name] = known.missing.get(missing[0], "no debug information of this build")
        elif body:
            parts[name] = _part(body, known)
    table = known.symbols.get(TICKETS)
    return Anatomy(**parts, tickets=table.address if table else None, why=why)


def _part(body: Mapping[str, Any], known: layouts.Layout) -> Part:
    words = {name: value for name, value in body.items() if name in _WORDS}
    members = {name: known.members[path] for name, path in body.items() if name not in _WORDS}
    roots = {
        name: known.symbols[layouts.root(path)].address
        for name, path in body.items()
        if name not in _WORDS and layouts.root(path) in known.symbols
    }
    return Part(words, members, roots)


def _paths(generation: Mapping[str, Any]) -> Iterator[str]:
    for name in _PARTS:
        yield from _of(generation.get(name, {}))


def _of(body: Mapping[str, Any]) -> list[str]:
    return [str(path) for name, path in body.items() if name not in _WORDS]


def _generation(target: Target) -> Mapping[str, Any] | None:
    for one in _servers():
        known = one["flavour"] == target.flavour and _number(one["from"]) <= target.version
        if known and ("below" not in one or target.version < _number(one["below"])):
            return one
    return None


def _number(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split("."))


@cache
def _servers() -> tuple[Mapping[str, Any], ...]:
    path = catalog_path("owners.yaml")
    data = read_yaml(path)
    try:
        return tuple(data["servers"])
    except (KeyError, TypeError) as error:
        raise BadFile(f"{path}: {type(error).__name__}: {error}") from error
