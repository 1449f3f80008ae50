"""Locate connections, metadata locks, InnoDB's locks and its waits in memory, using owners.yaml and DWARF."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from msgspec import Meta, field, structs

from innoscope import _native
from innoscope._native import Member
from innoscope.common.cache import Cache
from innoscope.common.data import catalog_path
from innoscope.common.schema import Entry, ServerEntry, read_yaml
from innoscope.memory import known_layouts
from innoscope.memory import layout as layouts

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from innoscope._native import Symbol
    from innoscope.target.model import Target

#: Cached layouts. A build has at most two of them: one for its locks, and one for its statements.
_CACHE: Final = Cache("owners", 64)
#: Keys of a part whose values are not paths.
_OPTIONS: Final = frozenset({
    "walk", "arrays", "tickets", "lists", "namespaces", "code",
    "cells", "locks", "mutexes", "writer_up_to", "one_reader",
})  # fmt: skip
_ADDRESS: Final = (1 << 64) - 1
#: Symbol of the vtable of MDL_ticket, which identifies objects of this class.
TICKETS: Final = "_ZTV10MDL_ticket"
#: Offset, from a vtable symbol, of the address that objects store: after offset-to-top and the RTTI pointer.
VTABLE: Final = 16

_Offset = Annotated[int, Meta(ge=0, lt=1 << 14)]
#: A path, or the offset and size of a member in bytes.
MemberPlace = str | tuple[_Offset, Literal[1, 2, 4, 8]]
_Number = Annotated[int, Meta(ge=known_layouts.CONFIRMABLE, lt=1 << 14)]
#: Functions, each with numbers and instructions that its machine code must contain.
Code = dict[str, tuple[_Number | known_layouts.Instructions, ...]]


class Sessions(Entry, frozen=True):
    """The locations of the list of connections and of the members of a connection."""

    walk: Literal["linked", "tree", "arrays"]
    first: str
    thread: MemberPlace
    connection: MemberPlace
    text: MemberPlace
    length: MemberPlace
    next: str | None = None
    arrays: Annotated[int, Meta(ge=1, le=64)] | None = None
    array_bytes: _Offset | None = None
    count: MemberPlace | None = None
    items: MemberPlace | None = None
    inline: MemberPlace | None = None
    table: str | None = None
    code: Code = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Raise ValueError unless keys that require each other are set together."""
        arrays = (self.arrays, self.array_bytes, self.count, self.items, self.table, self.code)
        if (self.walk == "arrays") != all(arrays):
            raise ValueError("arrays needs array_bytes, count, items, table and code")
        if (self.walk == "arrays") != (self.next is None):
            raise ValueError("next is required except with arrays")


class Metadata(Entry, frozen=True):
    """The locations of the metadata locks: members of a connection, of a ticket and of a lock."""

    tickets: Literal["linked", "ring", "contexts"]
    namespaces: tuple[str, ...]
    context: MemberPlace
    waiting_for: MemberPlace
    lock: MemberPlace
    holder: MemberPlace
    key: MemberPlace
    names: MemberPlace
    next: MemberPlace
    first: str | None = None
    lists: tuple[_Offset, ...] = ()
    owner: MemberPlace | None = None
    type: MemberPlace | None = None
    strategy: MemberPlace | None = None
    of_objects: str | None = None
    of_scopes: str | None = None
    code: Code = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Raise ValueError unless keys that require each other are set together."""
        types = (self.type, self.strategy, self.of_objects, self.of_scopes)
        if (self.tickets == "contexts") != all((self.lists, self.owner, *types, self.code)):
            raise ValueError("contexts needs lists, owner, type, strategy, of_objects, of_scopes and code")
        if (self.tickets == "contexts") != (self.first is None):
            raise ValueError("first is required except with contexts")


class Latches(Entry, frozen=True):
    """The locations of InnoDB's waits and rw-locks. ``count`` is set if there are several sync arrays."""

    cells: Literal["one", "several"]
    locks: tuple[int, ...]
    mutexes: tuple[int, ...]
    writer_up_to: int
    array: str
    size: MemberPlace
    used: MemberPlace
    cell: MemberPlace
    object: MemberPlace
    request: MemberPlace
    waiting: MemberPlace
    thread: MemberPlace
    writer: MemberPlace
    word: MemberPlace
    made_in: MemberPlace
    cell_bytes: str | int
    mutex_made_in: MemberPlace | None = None
    reader: MemberPlace | None = None
    one_reader: tuple[int, ...] = ()
    count: str | None = None
    code: Code = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Raise ValueError unless keys that require each other are set together."""
        if (self.cells == "several") != (self.count is not None):
            raise ValueError("count is required with several arrays, and not allowed otherwise")
        if bool(self.mutexes) != (self.mutex_made_in is not None):
            raise ValueError("mutex_made_in is required with mutexes, and not allowed otherwise")
        if bool(self.one_reader) != (self.reader is not None):
            raise ValueError("reader is required with one_reader, and not allowed otherwise")
        if isinstance(self.word, tuple) != bool(self.code):
            raise ValueError("code is required with offsets, and not allowed otherwise")


class Rows(Entry, frozen=True):
    """The locations of transactions and of InnoDB's locks. Either ``blocker`` or the lock queues are set."""

    handlerton: str
    slot: MemberPlace
    data: MemberPlace
    data_bytes: str | int
    thread: MemberPlace
    waiting_for: MemberPlace
    transaction: MemberPlace
    mode: MemberPlace
    index: MemberPlace
    index_name: MemberPlace
    table_name: MemberPlace
    session: MemberPlace | None = None
    blocker: MemberPlace | None = None
    system: str | None = None
    table: MemberPlace | None = None
    count: MemberPlace | None = None
    array: MemberPlace | None = None
    next: MemberPlace | None = None
    space: MemberPlace | None = None
    page: MemberPlace | None = None
    bits: MemberPlace | None = None
    lock_bytes: str | int | None = None
    code: Code = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Raise ValueError unless keys that require each other are set together."""
        queue = (self.table, self.count, self.array, self.next, self.space, self.page, self.bits)
        if any(queue) != all((*queue, self.system, self.lock_bytes)) or any(queue) == (
            self.blocker is not None
        ):
            raise ValueError("either blocker or all of the lock queues' locations are required")


class LockGeneration(ServerEntry, frozen=True):
    """The catalog entry for a range of server versions."""

    sessions: Sessions | None = None
    metadata: Metadata | None = None
    latches: Latches | None = None
    rows: Rows | None = None

    @property
    def parts(self) -> dict[str, dict[str, Any]]:
        """Return the parts that are set, each with the keys that are set."""
        parts = {
            "sessions": self.sessions,
            "metadata": self.metadata,
            "latches": self.latches,
            "rows": self.rows,
        }
        return {
            name: {key: value for key, value in structs.asdict(part).items() if value is not None}
            for name, part in parts.items()
            if part is not None
        }


class OwnersFile(Entry, frozen=True):
    """The contents of owners.yaml."""

    version: Literal[1]
    servers: tuple[LockGeneration, ...]


@dataclass(frozen=True, slots=True)
class LayoutPart:
    """One part of a generation, resolved for a process.

    ``options`` contains the catalog's values that are not paths. ``roots`` contains the addresses of the
    global variables.
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

    def number(self, raw: bytes, name: str, start: int = 0) -> int:
        """Return the member's unsigned number in a structure that begins at ``start`` in ``raw``."""
        begin = start + self.offset(name)
        return int.from_bytes(raw[begin : begin + self.size(name)], "little")


@dataclass(frozen=True, slots=True)
class LockLayout:
    """The catalog's lock layout, resolved for one process.

    A part is None if the catalog does not have it, or if it could not be located or confirmed; in the latter
    case, ``why`` maps its name to the reason. ``tickets`` is the address of the symbol TICKETS.
    """

    sessions: LayoutPart | None = None
    metadata: LayoutPart | None = None
    latches: LayoutPart | None = None
    rows: LayoutPart | None = None
    tickets: int | None = None
    why: Mapping[str, str] = dataclasses.field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ResolvedParts:
    """The resolved parts, the reasons why other parts are missing, and the symbols of the process."""

    parts: dict[str, LayoutPart]
    why: dict[str, str]
    symbols: Mapping[str, Symbol]


class ProcessMemory:
    """Reads the memory of one process. Unmapped addresses yield None or 0.

    Methods raise OSError or NativeError if the process has exited or its memory cannot be read.
    """

    def __init__(self, pid: int) -> None:
        self._pid = pid

    def many(self, places: Sequence[tuple[int, int]]) -> list[bytes | None]:
        """Return the bytes at each ``(address, size)``; None if the address is not mapped.

        A pointer from a hostile server plus an offset may exceed 64 bits; the sum wraps around as in C.
        """
        return _native.read_many(self._pid, [(address & _ADDRESS, size) for address, size in places])

    def numbers(self, addresses: Sequence[int], size: int = 8) -> list[int]:
        """Return the unsigned number of ``size`` bytes at each address; 0 if the address is not mapped."""
        return [int.from_bytes(raw or b"", "little") for raw in self.many([(one, size) for one in addresses])]

    def number(self, address: int, size: int = 8) -> int:
        """Return the unsigned number of ``size`` bytes at one address; 0 if the address is not mapped."""
        return self.numbers([address], size)[0]


def learn(target: Target) -> LockLayout:
    """Return the lock layout of a running server. For a large build, the first call takes one or two seconds.

    Raise the same errors as ``layouts.learn``.
    """
    generations = (one for one in servers() if one.fits(target.flavour, target.version))
    generation = next(generations, None)
    if generation is None:
        return LockLayout()
    found = resolve(target, generation.parts, (TICKETS,))
    table = found.symbols.get(TICKETS)
    return LockLayout(**found.parts, tickets=table.address if table else None, why=found.why)


def resolve(
    target: Target, bodies: Mapping[str, Mapping[str, Any]], extra: Sequence[str] = ()
) -> ResolvedParts:
    """Locate the parts that ``bodies`` describe in a running server, and the symbols ``extra``.

    Raise the same errors as ``layouts.learn``.
    """
    paths = sorted({path for body in bodies.values() for path in _paths(body)})
    functions = {function for body in bodies.values() for function in body.get("code", ())}
    names = sorted({layouts.root(path) for path in paths} | {*extra} | functions)
    known = layouts.learn(target, names, (), layouts.Debug(), _CACHE, types=paths)
    parts: dict[str, LayoutPart] = {}
    why: dict[str, str] = {}
    code = known_layouts.read_code(target.pid, known.symbols, functions)
    for name, body in bodies.items():
        known_here = {**_variables(known), **known.members}
        evidence = [
            (bytes.fromhex(one) if isinstance(one, str) else one, function)
            for function, contents in body.get("code", {}).items()
            for one in contents
        ]
        if missing := [path for path in _paths(body) if path not in known_here]:
            why[name] = known.missing.get(missing[0], "no debug information of this build")
        elif reason := known_layouts.contradiction(code, known.symbols, evidence):
            why[name] = f"the layout of {name} {reason}"
        else:
            parts[name] = _part(body, known_here, known.symbols)
    return ResolvedParts(parts, why, known.symbols)


def _variables(known: layouts.MemoryLayout) -> dict[str, Member]:
    """Return the variables whose sizes are in the symbol table, for builds without debug information."""
    return {name: Member((0,), symbol.size, "unsigned") for name, symbol in known.symbols.items()}


def _part(body: Mapping[str, Any], known: Mapping[str, Member], symbols: Mapping[str, Symbol]) -> LayoutPart:
    options = {name: value for name, value in body.items() if name in _OPTIONS}
    members = {name: _member(place, known) for name, place in body.items() if name not in _OPTIONS}
    roots = {
        name: symbols[layouts.root(path)].address
        for name, path in body.items()
        if name not in _OPTIONS and isinstance(path, str) and layouts.root(path) in symbols
    }
    return LayoutPart(options, members, roots)


def _member(place: str | int | tuple[int, int], known: Mapping[str, Member]) -> Member:
    if isinstance(place, str):
        return known[place]
    if isinstance(place, int):
        return Member((0,), place, "structure")
    return Member((place[0],), place[1], "unsigned")


def _paths(body: Mapping[str, Any]) -> list[str]:
    return [path for name, path in body.items() if name not in _OPTIONS and isinstance(path, str)]


@cache
def servers() -> tuple[LockGeneration, ...]:
    """Return the entries of the installed catalog. Raise BadFile if it cannot be read or is invalid."""
    return read_yaml(catalog_path("owners.yaml"), OwnersFile).servers


def catalog_paths() -> set[str]:
    """Return the paths in the installed catalog, of all server versions."""
    return {path for one in servers() for body in one.parts.values() for path in _paths(body)}
