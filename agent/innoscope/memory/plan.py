"""Choose the source of each value, which is the first in the catalog that this server build provides."""

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

#: Type in the server's tables -> kind and size of the number.
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
    """One number in memory, or the sum of an array: ``member`` relative to ``base``. Compared by identity.

    ``length`` is the term with the number of elements, if debug information does not contain this number.
    """

    base: int
    member: Member
    length: Term | None = None


@dataclass(frozen=True, slots=True)
class PlannedValue:
    """The computation of one value: the sum of ``terms``, reduced to ``bits``, times ``scale``."""

    value: str
    terms: tuple[Term, ...]
    when: Term | None
    bits: tuple[int, int] | None
    scale: float | None
    origin: str
    #: True for a copy that only SHOW STATUS updates. A copy that is 0 was never updated.
    settled: bool


@dataclass(frozen=True, slots=True)
class Absent:
    """A value that cannot be read from this server, with the reason and a remedy."""

    value: str
    reason: str
    remedy: str


@dataclass(frozen=True, slots=True)
class Plan:
    """The values that can be read from one server, and the values that cannot be read."""

    readings: tuple[PlannedValue, ...]
    absent: tuple[Absent, ...]


class _SourceMissing(Exception):
    """The server does not have this source; the message is the reason."""


@dataclass(frozen=True, slots=True)
class _Planner:
    target: Target
    catalog: Catalog
    layout: Layout
    status: Callable[[], Mapping[str, Status]]
    variables: Callable[[], Mapping[str, Variable]]
    #: Terms by path, so that a term is read only once even if several values need it.
    terms: dict[str, Term] = field(default_factory=dict)

    def reading(self, value: str, source: Source) -> PlannedValue:
        """Return a plan for reading the value from this source. Raises _SourceMissing."""
        when = None
        if source.paths:
            terms = tuple(self._member(path) for path in source.paths)
            when = self._member(source.when) if source.when else None
            origin = "symbol " + " + ".join(source.paths) + ", offsets from " + _described_by(self.layout)
        elif source.symbol:
            terms = (self._symbol(source.symbol, source.kind or "unsigned"),)
            origin = f"symbol {source.symbol}"
        elif source.status:
            terms = tuple(self._status(name, settled=source.settled) for name in source.statuses)
            copy = " (a copy of what SET GLOBAL changes)" if source.settled else ""
            origin = f"status variable {' + '.join(source.statuses)} in the server's own table{copy}"
        else:
            terms = (self._variable(source.variable or ""),)
            origin = f"system variable {source.variable} in the server's own table"
        return PlannedValue(value, terms, when, source.bits, source.scale, origin, source.settled)

    def _member(self, path: str) -> Term:
        if path not in self.terms:
            self.terms[path] = self._find_member(path)
        return self.terms[path]

    def _find_member(self, path: str) -> Term:
        root = layouts.root(path)
        if root not in self.layout.symbols:
            raise _SourceMissing(f"no symbol {root}")
        if not self.layout.described:
            raise _SourceMissing(f"no debug information for {path}")
        member = self.layout.members.get(path)
        if member is None:
            raise _SourceMissing(self.layout.missing.get(path, f"{path} is not in the debug information"))
        if member.kind not in ("unsigned", "signed", "float"):
            raise _SourceMissing(f"{path} is not a number but a {member.kind}")
        if not is_readable(member):
            raise _SourceMissing(
                f"{path} is not read: its size or the distance of its elements is implausibly large"
            )
        return Term(self.layout.symbols[root].address, member, self._length(root, member))

    def _length(self, root: str, member: Member) -> Term | None:
        if member.count > 0:
            return None
        if root not in self.catalog.lengths:
            raise _SourceMissing(f"the number of elements behind {root} is unknown")
        return self._member(self.catalog.lengths[root])

    def _symbol(self, name: str, kind: str) -> Term:
        if name not in self.layout.symbols:
            raise _SourceMissing(f"no symbol {name}")
        symbol = self.layout.symbols[name]
        if symbol.size not in (1, 2, 4, 8):
            raise _SourceMissing(f"symbol {name} is not a number: it has {symbol.size} bytes")
        return Term(symbol.address, Member((0,), symbol.size, kind))

    def _status(self, name: str, *, settled: bool) -> Term:
        found = self.status().get(name)
        if found is None:
            raise _SourceMissing(f"no {name} in the server's table of status variables")
        if not found.live and not settled:
            raise _SourceMissing(f"{name} is a copy that only SHOW STATUS updates")
        return variable_term(found.address, found.type)

    def _variable(self, name: str) -> Term:
        found = self.variables().get(name)
        if found is None or found.type not in TYPES:
            raise _SourceMissing(f"no {name} in the server's table of system variables")
        return variable_term(found.address, found.type)


def make(
    target: Target,
    catalog: Catalog,
    layout: Layout,
    status: Callable[[], Mapping[str, Status]],
    variables: Callable[[], Mapping[str, Variable]],
) -> Plan:
    """Return the plan for one server.

    ``status`` and ``variables`` are functions that search the server's tables if a value needs them.
    """
    maker = _Planner(target, catalog, layout, status, variables)
    readings, absent = [], []
    for value, sources in catalog.values.items():
        reasons = []
        for source in sources:
            if not source.fits(target.flavour, target.version):
                continue
            try:
                readings.append(maker.reading(value, source))
                break
            except _SourceMissing as no:
                reasons.append(str(no))
        else:
            absent.append(Absent(value, _because(reasons), _remedy(target, layout)))
    return Plan(tuple(readings), tuple(absent))


def _because(reasons: list[str]) -> str:
    return "; ".join(dict.fromkeys(reasons)) or "no source is known for this server"


def _remedy(target: Target, layout: Layout) -> str:
    if layout.described:
        return "this release does not have it in memory; SQL or a probe may have it"
    if layout.problem:
        return f"{layout.problem}; or use the SQL collector"
    if target.build_id is None:
        return "run a build with debug information; or use the SQL collector"
    file = f"/usr/lib/debug/.build-id/{target.build_id[:2]}/{target.build_id[2:]}.debug"
    return f"install the server's debug package ({file}) or a symbol pack; or use the SQL collector"


def _described_by(layout: Layout) -> str:
    return "a symbol pack" if layout.from_pack else "debug information"


def variable_term(address: int, kind: str) -> Term:
    """Return the term for a variable at this address, with one of the types in ``TYPES``."""
    return Term(address, Member((0,), TYPES[kind][1], TYPES[kind][0]))
