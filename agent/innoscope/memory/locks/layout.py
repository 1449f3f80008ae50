"""Locate a server's connections, metadata locks and InnoDB waits in memory, from owners.yaml and DWARF."""

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

    from innoscope.memory.layout import Member
    from innoscope.target.model import Target

#: Layouts of the 64 builds used last.
_CACHE: Final = Cache("owners", 64)
#: Keys of a part that are options, not paths.
_OPTIONS: Final = frozenset({"walk", "tickets", "namespaces", "cells"})
_PARTS: Final = ("sessions", "metadata", "latches")
#: Symbol of the virtual function table (vtable), which identifies the objects of a class.
TICKETS: Final = "_ZTV10MDL_ticket"


@dataclass(frozen=True, slots=True)
class Part:
    """One part of a generation.

    ``options`` are as in the catalog, ``roots`` the addresses of its variables.
    """

    options: Mapping[str, Any]
    members: Mapping[str, Member]
    roots: Mapping[str, int]

    def offset(self, name: str) -> int:
        """Return the member's offset in its type."""
        return self.members[name].offsets[0]

    def size(self, name: str) -> int:
        """Return the member's size in bytes."""
        return self.members[name].size


@dataclass(frozen=True, slots=True)
class LockLayout:
    """The parts that this build has. A part is None if one of its paths is unknown; ``why`` is the reason."""

    sessions: Part | None = None
    metadata: Part | None = None
    latches: Part | None = None
    tickets: int | None = None
    why: Mapping[str, str] = field(default_factory=dict)


class ProcessMemory:
    """Read the memory of one process; unmapped addresses give None or 0."""

    def __init__(self, pid: int) -> None:
        self._pid = pid

    def many(self, places: Sequence[tuple[int, int]]) -> list[bytes | None]:
        """Return the bytes at each ``(address, size)``."""
        return _native.read_many(self._pid, places)

    def numbers(self, addresses: Sequence[int], size: int = 8) -> list[int]:
        """Return the unsigned number at each address."""
        return [int.from_bytes(raw or b"", "little") for raw in self.many([(one, size) for one in addresses])]

    def number(self, address: int, size: int = 8) -> int:
        """Return the unsigned number at one address."""
        return self.numbers([address], size)[0]


def learn(target: Target) -> LockLayout:
    """Return the lock layout of a running server. The first time takes one or two seconds for a large build.

    Raises NoSuchProcess, NoRights or BadFile.
    """
    generation = _generation(target)
    if generation is None:
        return LockLayout()
    paths = sorted(set(_paths(generation)))
    names = sorted({layouts.root(path) for path in paths} | {TICKETS})
    known = layouts.learn(target, names, (), layouts.Debug(), _CACHE, types=paths)
    parts: dict[str, Part] = {}
    why: dict[str, str] = {}
    for name in _PARTS:
        body = generation.get(name, {})
        missing = [path for path in _paths_of(body) if path not in known.members]
        if missing:
            why[name] = known.missing.get(missing[0], "no debug information of this build")
        elif body:
            parts[name] = _part(body, known)
    table = known.symbols.get(TICKETS)
    return LockLayout(**parts, tickets=table[0] if table else None, why=why)


def _part(body: Mapping[str, Any], known: layouts.Layout) -> Part:
    options = {name: value for name, value in body.items() if name in _OPTIONS}
    members = {name: known.members[path] for name, path in body.items() if name not in _OPTIONS}
    roots = {
        name: known.symbols[layouts.root(path)][0]
        for name, path in body.items()
        if name not in _OPTIONS and layouts.root(path) in known.symbols
    }
    return Part(options, members, roots)


def _paths(generation: Mapping[str, Any]) -> Iterator[str]:
    for name in _PARTS:
        yield from _paths_of(generation.get(name, {}))


def _paths_of(body: Mapping[str, Any]) -> list[str]:
    return [str(path) for name, path in body.items() if name not in _OPTIONS]


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
