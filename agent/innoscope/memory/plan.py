"""Which place each value is read from in one server: the first of the catalog's that this build has."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from innoscope._native import Member
from innoscope.memory import layout as layouts
from innoscope.memory.numbers import is_readable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from innoscope.memory.catalog import Catalog, Source
    from innoscope.memory.layout import Layout
    from innoscope.memory.tables import Status, Variable
    from innoscope.target.model import Target

#: Types of the server's tables -> kind and size of a number.
TYPES: Final[Mapping[str, tuple[str, int]]] = {
    "bool": ("unsigned", 1),
    "uint32": ("unsigned", 4),
    "uint64": ("unsigned", 8),
    "int32": ("signed", 4),
    "int64": ("signed", 8),
    "float64": ("float", 8),
}


@dataclass(frozen=True, slots=True, eq=False)
class Term:
    """One number in memory, or the sum of several: ``member`` seen from ``base``. Compared by identity.

    ``length`` is where the number of elements is, when the member itself does not say.
    """

    base: int
    member: Member
    length: Term | None = None


@dataclass(frozen=True, slots=True)
class Reading:
    """How one value is read: the sum of ``terms``, of which ``bits`` count, times ``scale``."""

    value: str
    terms: tuple[Term, ...]
    when: Term | None
    bits: tuple[int, int] | None
    scale: float | None
    origin: str
    #: A copy that somebody has to refresh: 0 means that it never was.
    settled: bool


@dataclass(frozen=True, slots=True)
class Absent:
    """Why a value cannot be read here, and what would help."""

    value: str
    reason: str
    remedy: str


@dataclass(frozen=True, slots=True)
class Plan:
    """What can be read of one server, and what cannot."""

    readings: tuple[Reading, ...]
    absent: tuple[Absent, ...]


class _No(Exception):
    """This place is not in this server; the words say why."""


@dataclass(frozen=True, slots=True)
class _Maker:
    target: Target
    catalog: Catalog
    layout: Layout
    status: Callable[[], Mapping[str, Status]]
    variables: Callable[[], Mapping[str, Variable]]
    #: By path, so that what several values need is read once.
    made: dict[str, Term] = field(default_factory=dict)

    def reading(self, value: str, source: Source) -> Reading:
        """How to read the value from that place; raises _No."""
        when = None
        if source.paths:
            terms = tuple(self._member(path) for path in source.paths)
            when = self._member(source.when) if source.when else None
            origin = "symbol " + " + ".join(source.paths) + ", offsets from " + _described_by(self.layout)
        elif source.symbol:
            terms = (self._symbol(source.symbol, source.kind or "unsigned"),)
            origin = f"symbol {source.symbol}"
        elif source.status:
            terms = tuple(self._status(name, settled=source.settled) for name in source.status)
            copy = " (a copy of what SET GLOBAL changes)" if source.settled else ""
            origin = f"status variable {' + '.join(source.status)} in the server's own table{copy}"
        else:
            terms = (self._variable(source.variable or ""),)
            origin = f"system variable {source.variable} in the server's own table"
        return Reading(value, terms, when, source.bits, source.scale, origin, source.settled)

    def _member(self, path: str) -> Term:
        if path not in self.made:
            self.made[path] = self._new_member(path)
        return self.made[path]

    def _new_member(self, path: str) -> Term:
        root = layouts.root(path)
        if root not in self.layout.symbols:
            raise _No(f"no symbol {root}")
        if not self.layout.described:
            raise _No(f"no debug information that says where {path} is")
        member = self.layout.members.get(path)
        if member is None:
            raise _No(self.layout.missing.get(path, f"nothing known of {path}"))
        if member.kind not in ("unsigned", "signed", "float"):
            raise _No(f"{path} is no number but a {member.kind}")
        if not is_readable(member):
            raise _No(
                f"{path} is not read: its size or the distance of its elements exceeds those of servers"
            )
        return Term(self.layout.symbols[root].address, member, self._length(root, member))

    def _length(self, root: str, member: Member) -> Term | None:
        if member.count > 0:
            return None
        if root not in self.catalog.lengths:
            raise _No(f"nothing says how many elements {root} leads to")
        return self._member(self.catalog.lengths[root])

    def _symbol(self, name: str, kind: str) -> Term:
        if name not in self.layout.symbols:
            raise _No(f"no symbol {name}")
        symbol = self.layout.symbols[name]
        if symbol.size not in (1, 2, 4, 8):
            raise _No(f"symbol {name} is no number: it has {symbol.size} bytes")
        return Term(symbol.address, Member((0,), symbol.size, kind))

    def _status(self, name: str, *, settled: bool) -> Term:
        found = self.status().get(name)
        if found is None:
            raise _No(f"no {name} in its table of status variables")
        if not found.live and not settled:
            raise _No(f"{name} is a copy, only as new as the last SHOW STATUS")
        return variable_term(found.address, found.type)

    def _variable(self, name: str) -> Term:
        found = self.variables().get(name)
        if found is None or found.type not in TYPES:
            raise _No(f"no {name} in its table of system variables")
        return variable_term(found.address, found.type)


def make(
    target: Target,
    catalog: Catalog,
    layout: Layout,
    status: Callable[[], Mapping[str, Status]],
    variables: Callable[[], Mapping[str, Variable]],
) -> Plan:
    """The plan for one server; the tables are asked for only where nothing better is there."""
    maker = _Maker(target, catalog, layout, status, variables)
    readings, absent = [], []
    for value, sources in catalog.values.items():
        reasons = []
        for source in sources:
            if not source.is_for(target.flavour, target.version):
                continue
            try:
                readings.append(maker.reading(value, source))
                break
            except _No as no:
                reasons.append(str(no))
        else:
            absent.append(Absent(value, _because(reasons), _remedy(target, layout)))
    return Plan(tuple(readings), tuple(absent))


def _because(reasons: list[str]) -> str:
    return "; ".join(dict.fromkeys(reasons)) or "no place is known for this server"


def _remedy(target: Target, layout: Layout) -> str:
    if layout.described:
        return "this release counts it nowhere that can be read; SQL or a probe may tell"
    if layout.problem:
        return f"{layout.problem}; or let the SQL collector tell"
    if target.build_id is None:
        return "run a build with debug information; or let the SQL collector tell"
    file = f"/usr/lib/debug/.build-id/{target.build_id[:2]}/{target.build_id[2:]}.debug"
    return f"install the server's debug package ({file}) or a symbol pack; or let the SQL collector tell"


def _described_by(layout: Layout) -> str:
    return "a symbol pack" if layout.from_pack else "debug information"


def variable_term(address: int, kind: str) -> Term:
    """A number of one of the types of the server's tables."""
    return Term(address, Member((0,), TYPES[kind][1], TYPES[kind][0]))
