"""Locate connections, metadata locks and InnoDB's waits in a server's memory, by owners.yaml and DWARF."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any, Final, Literal

from msgspec import structs

from innoscope import _native
from innoscope.common.cache import Cache
from innoscope.common.data import catalog_path
from innoscope.common.schema import Entry, ServerEntry, read_yaml
from innoscope.memory import layout as layouts

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from innoscope._native import Member
    from innoscope.target.model import Target

#: Cache of the layouts of at most 64 server builds.
_CACHE: Final = Cache("owners", 64)
#: Keys of a part whose values are not paths.
_OPTIONS: Final = frozenset({"walk", "tickets", "namespaces", "cells"})
#: Symbol of the virtual function table of MDL_ticket, which identifies objects of this class.
TICKETS: Final = "_ZTV10MDL_ticket"


class Sessions(Entry, frozen=True):
    """The paths to the list of connections and to the members of a connection."""

    walk: Literal["linked", "tree"]
    first: str
    next: str
    thread: str
    connection: str
    text: str
    length: str


class Metadata(Entry, frozen=True):
    """The paths to the metadata locks: members of a connection, of a ticket and of a lock."""

    tickets: Literal["linked", "ring"]
    namespaces: tuple[str, ...]
    context: str
    waiting_for: str
    lock: str
    holder: str
    key: str
    names: str
    first: str
    next: str


class Latches(Entry, frozen=True):
    """The paths to InnoDB's sync arrays. ``count`` is set if there are several arrays."""

    cells: Literal["one", "several"]
    array: str
    size: str
    used: str
    cell: str
    object: str
    request: str
    waiting: str
    thread: str
    writer: str
    word: str
    made_in: str
    mutex_made_in: str
    cell_bytes: str
    count: str | None = None

    def __post_init__(self) -> None:
        """Check that ``count`` is set for several arrays, and only then. Raises ValueError."""
        if (self.cells == "several") != (self.count is not None):
            raise ValueError("count is required with several arrays, and not allowed otherwise")


class Generation(ServerEntry, frozen=True):
    """The catalog entry for a range of server versions."""

    sessions: Sessions | None = None
    metadata: Metadata | None = None
    latches: Latches | None = None

    @property
    def parts(self) -> dict[str, dict[str, Any]]:
        """Return the keys that are set in each part that is set."""
        parts = {"sessions": self.sessions, "metadata": self.metadata, "latches": self.latches}
        return {
            name: {key: value for key, value in structs.asdict(part).items() if value is not None}
            for name, part in parts.items()
            if part is not None
        }


class File(Entry, frozen=True):
    """The contents of owners.yaml."""

    version: Literal[1]
    servers: tuple[Generation, ...]


@dataclass(frozen=True, slots=True)
class Part:
    """One part of a generation, resolved for a process.

    ``options`` are the values in the catalog that are not paths.
    ``roots`` holds the addresses of the global variables.
    """

    options: Mapping[str, Any]
    members: Mapping[str, Member]
    roots: Mapping[str, int]

    def offset(self, name: str) -> int:
        """Return the member's offset in its structure, in bytes."""
        return self.members[name].offsets[0]

    def size(self, name: str) -> int:
        """Return the member's size in bytes."""
        return self.members[name].size


@dataclass(frozen=True, slots=True)
class LockLayout:
    """The resolved parts of one process.

    If a path of a part is unknown, the part is None, and ``why`` gives the reason.
    ``tickets`` is the address of the symbol TICKETS.
    """

    sessions: Part | None = None
    metadata: Part | None = None
    latches: Part | None = None
    tickets: int | None = None
    why: Mapping[str, str] = field(default_factory=dict)


class ProcessMemory:
    """Reads the memory of one process. For unmapped addresses, None or 0 is returned."""

    def __init__(self, pid: int) -> None:
        self._pid = pid

    def many(self, places: Sequence[tuple[int, int]]) -> list[bytes | None]:
        """Return the bytes at each ``(address, size)``; None if the address is not mapped."""
        return _native.read_many(self._pid, places)

    def numbers(self, addresses: Sequence[int], size: int = 8) -> list[int]:
        """Return the unsigned number of ``size`` bytes at each address; 0 if it is not mapped."""
        return [int.from_bytes(raw or b"", "little") for raw in self.many([(one, size) for one in addresses])]

    def number(self, address: int, size: int = 8) -> int:
        """Return the unsigned number of ``size`` bytes at one address; 0 if it is not mapped."""
        return self.numbers([address], size)[0]


def learn(target: Target) -> LockLayout:
    """Return the lock layout of a running server. For a large build, the first call takes one or two seconds.

    Raises NoSuchProcess, NoRights or BadFile.
    """
    generations = (one for one in servers() if one.fits(target.flavour, target.version))
    generation = next(generations, None)
    if generation is None:
        return LockLayout()
    bodies = generation.parts
    paths = sorted({path for body in bodies.values() for path in _paths(body)})
    names = sorted({layouts.root(path) for path in paths} | {TICKETS})
    known = layouts.learn(target, names, (), layouts.Debug(), _CACHE, types=paths)
    parts: dict[str, Part] = {}
    why: dict[str, str] = {}
    for name, body in bodies.items():
        if missing := [path for path in _paths(body) if path not in known.members]:
            why[name] = known.missing.get(missing[0], "no debug information of this build")
        else:
            parts[name] = _part(body, known)
    table = known.symbols.get(TICKETS)
    return LockLayout(**parts, tickets=table.address if table else None, why=why)


def _part(body: Mapping[str, Any], known: layouts.Layout) -> Part:
    options = {name: value for name, value in body.items() if name in _OPTIONS}
    members = {name: known.members[path] for name, path in body.items() if name not in _OPTIONS}
    roots = {
        name: known.symbols[layouts.root(path)].address
        for name, path in body.items()
        if name not in _OPTIONS and layouts.root(path) in known.symbols
    }
    return Part(options, members, roots)


def _paths(body: Mapping[str, Any]) -> list[str]:
    return [path for name, path in body.items() if name not in _OPTIONS]


@cache
def servers() -> tuple[Generation, ...]:
    """Return the entries of the installed catalog. Raises BadFile."""
    return read_yaml(catalog_path("owners.yaml"), File).servers
