"""Locate the members of THD that describe a connection's statement, using statements.yaml."""

from __future__ import annotations

import platform
import re
from collections import defaultdict
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from msgspec import Meta, field, structs

from innoscope._native import Member, StatementReader
from innoscope.common.data import catalog_path
from innoscope.common.errors import InnoscopeError
from innoscope.common.schema import Entry, ServerEntry, read_yaml
from innoscope.memory import known_layouts
from innoscope.memory.locks import layout as locks
from innoscope.memory.locks.layout import Code, LayoutPart, MemberPlace
from innoscope.target.digests import MAX_CHARS, rules

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from innoscope._native import Symbol
    from innoscope.target.model import Target

#: Sources of a build's offsets.
DESCRIBED: Final = "debug information"
CONFIRMED: Final = "the catalog's offsets, which the build's code confirms"
DECODED: Final = "the code of exported functions"
#: Limit on a member's offset. A THD has 11,640 bytes in MySQL 5.5.9, and 27,416 in MariaDB 11.4.5.
_MOST: Final = 1 << 15
#: The instruction endbr64, with which a function may begin.
_LANDING: Final = re.compile(rb"\xf3\x0f\x1e\xfa")

#: Instructions in hexadecimal, with placeholders: ``48 8b 87 @4 c3``.
_Pattern = Annotated[str, Meta(pattern=r"\A(?:\* )?(?:(?:[0-9a-f]{2}|\.\.|@[14])(?: |\Z))+\Z")]


class Accessor(Entry, frozen=True):
    """A function, and instructions that contain a member's offset. ``plus`` is added to the offset."""

    function: str
    code: tuple[_Pattern, ...]
    bytes: Literal[4, 8] = 8
    plus: int = 0


class StatementMembers(Entry, frozen=True):
    """The members of THD that describe its statement, in addition to those in owners.yaml."""

    query: MemberPlace
    command: MemberPlace
    user: MemberPlace
    schema: MemberPlace


class Statements(ServerEntry, frozen=True, kw_only=True):
    """The catalog entry for a range of server versions."""

    members: StatementMembers
    code: Code = field(default_factory=dict)
    exported: dict[str, MemberPlace | Accessor] = field(default_factory=dict)


class StatementsFile(Entry, frozen=True):
    """The contents of statements.yaml."""

    version: Literal[1]
    commands: dict[int, str]
    servers: tuple[Statements, ...]


@dataclass(frozen=True, slots=True)
class StatementLayout:
    """The locations of a server's statements. ``source`` is their origin, or why they are unknown."""

    part: LayoutPart | None
    source: str

    def open_reader(self, target: Target) -> StatementReader | None:
        """Return a reader of the server's statements; None if their locations are unknown."""
        if self.part is None:
            return None
        options = self.part.options
        version, mysql_9 = rules(target.flavour, target.version)
        return StatementReader(
            target.pid,
            walk=options["walk"],
            members=self.part.members,
            roots=self.part.roots,
            arrays=options.get("arrays"),
            version=version,
            mysql_9=mysql_9,
            max_chars=MAX_CHARS,
        )


def text_members(target: Target) -> tuple[int, int, int] | None:
    """Return the offsets in THD of the connection id and of the statement's address and length, if known."""
    part = learn(target).part
    return None if part is None else (part.offset("connection"), part.offset("text"), part.offset("length"))


def learn(target: Target) -> StatementLayout:
    """Return the layout of a running server. For a large build, the first call takes one or two seconds."""
    owners = next((one for one in locks.servers() if one.fits(target.flavour, target.version)), None)
    entry = next((one for one in installed().servers if one.fits(target.flavour, target.version)), None)
    if owners is None or owners.sessions is None or entry is None:
        return StatementLayout(None, f"not in the catalog: {target.flavour} {target.version_text}")
    body = {**owners.parts["sessions"], **structs.asdict(entry.members)}
    body["code"] = _both(owners.sessions.code, entry.code)
    accessors = [one for one in entry.exported.values() if isinstance(one, Accessor)]
    roots = [one for one in entry.exported.values() if isinstance(one, str)]
    try:
        # The search for a type's compilation unit finds only names in .debug_str, but a name as short as THD
        # is stored inline. The unit that defines THD is found by the names in the other parts.
        bodies = {**owners.parts, "statements": body}
        found = locks.resolve(target, bodies, [*roots, *(one.function for one in accessors)])
        if "statements" in found.parts:
            return StatementLayout(found.parts["statements"], CONFIRMED if body["code"] else DESCRIBED)
        if entry.exported and platform.machine() == "x86_64":
            return _exported(target, entry, body, found.symbols)
    except InnoscopeError as error:
        return StatementLayout(None, error.in_one_line)
    return StatementLayout(None, found.why["statements"])


def _both(first: Code, second: Code) -> Code:
    merged: defaultdict[str, tuple[Any, ...]] = defaultdict(tuple)
    for function, contents in (*first.items(), *second.items()):
        merged[function] += contents
    return dict(merged)


def _exported(
    target: Target, entry: Statements, body: Mapping[str, Any], symbols: Mapping[str, Symbol]
) -> StatementLayout:
    """Return the layout decoded from the code of the build's exported functions."""
    accessors = {name: one for name, one in entry.exported.items() if isinstance(one, Accessor)}
    code = known_layouts.read_code(target.pid, symbols, {one.function for one in accessors.values()})
    members: dict[str, Member] = {}
    roots: dict[str, int] = {}
    for name, place in entry.exported.items():
        if isinstance(place, Accessor):
            offsets = decode(code.get(place.function, b""), place.code)
            if offsets is None:
                return StatementLayout(None, f"{place.function}() is missing or has unknown instructions")
            members[name] = Member((*offsets[:-1], offsets[-1] + place.plus), place.bytes, "unsigned")
        elif isinstance(place, str):
            if place not in symbols:
                return StatementLayout(None, f"no symbol {place}")
            members[name], roots[name] = Member((0,), 8, "unsigned"), symbols[place].address
        else:
            members[name] = Member((place[0],), place[1], "unsigned")
    return StatementLayout(LayoutPart({"walk": body["walk"]}, members, roots), DECODED)


def decode(code: bytes, patterns: Sequence[str]) -> tuple[int, ...] | None:
    """Return the offsets in a function's code, from the first pattern whose matches agree on them.

    Patterns that yield implausible offsets are skipped. Return None if no pattern is left.
    """
    if landing := _LANDING.match(code):
        code = code[landing.end() :]
    for pattern in patterns:
        expression = _expression(pattern)
        matches = expression.finditer(code) if pattern.startswith("* ") else [expression.fullmatch(code)]
        found = {match.groups() for match in matches if match}
        offsets = [tuple(int.from_bytes(one, "little", signed=True) for one in groups) for groups in found]
        if len(offsets) == 1 and all(0 <= one < _MOST for one in offsets[0]):
            return offsets[0]
    return None


def _expression(pattern: str) -> re.Pattern[bytes]:
    tokens = {"..": b".", "@1": b"(.)", "@4": b"(.{4})"}
    parts = pattern.removeprefix("* ").split()
    return re.compile(b"".join(tokens.get(one) or re.escape(bytes.fromhex(one)) for one in parts), re.DOTALL)


@cache
def installed() -> StatementsFile:
    """Return the installed catalog. Raise BadFile if it cannot be read or is invalid."""
    return read_yaml(catalog_path("statements.yaml"), StatementsFile)


def catalog_paths() -> set[str]:
    """Return the paths in the installed catalog, of all server versions, without those in owners.yaml."""
    places = (place for entry in installed().servers for place in structs.astuple(entry.members))
    return {place for place in places if isinstance(place, str)}
