"""Choose the source of each value: the first in the catalog that this server build provides."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from innoscope._native import Member
from innoscope.memory import layout as layouts
from innoscope.memory.catalog import MemorySource
from innoscope.memory.numbers import Term, is_readable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from innoscope.memory.catalog import Clock, MemoryCatalog
    from innoscope.memory.layout import MemoryLayout
    from innoscope.memory.tables import StatusVariable, SystemVariable
    from innoscope.target.model import Target

#: Type in the server's tables → kind and size of the number.
TYPES: Final[Mapping[str, tuple[str, int]]] = {
    "bool": ("unsigned", 1),
    "uint32": ("unsigned", 4),
    "uint64": ("unsigned", 8),
    "int32": ("signed", 4),
    "int64": ("signed", 8),
    "float64": ("float", 8),
}


@dataclass(frozen=True, slots=True)
class PlannedValue:
    """How to compute one value.

    The steps, in order: add ``terms``, subtract ``minus``, apply ``reserve``, add ``plus``, divide by
    ``per``, extract ``bits``, convert ``unit``, multiply by ``scale``. ``least`` or ``flags`` replaces them.
    """

    value: str
    terms: tuple[Term, ...]
    #: If this is 0, the value is 0.
    when: Term | None
    bits: tuple[int, int] | None
    scale: float | None
    origin: str
    #: True for a copy that only SHOW STATUS updates. The value 0 then means that the copy was never updated.
    settled: bool
    #: A term, and the range of its bits to add.
    plus: tuple[Term, tuple[int, int]] | None = None
    #: ``sn``: the result is converted to an LSN.
    unit: str | None = None
    #: The only term is an array of pointers to objects. The value is the minimum of this member of them.
    least: Member | None = None
    #: The only term is an array of timestamps of ``clock``, which ``scale`` converts to seconds. The value is
    #: the age of the oldest one whose flag is set.
    flags: Term | None = None
    #: A pointer. While it is NULL, 1 is subtracted, but the result is not less than 0.
    reserve: Term | None = None
    minus: tuple[Term, ...] = ()
    #: The divisor of an integer division. If it is 0, there is no value.
    per: Term | None = None
    clock: Clock = "unix"
    #: Variables whose layout is from the catalog. A value is withheld until it passes the layout's checks.
    assumed: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Absent:
    """A value that cannot be read from this server, with the reason and a remedy."""

    value: str
    reason: str
    remedy: str


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """The values that can be read from one server, and those that cannot."""

    readings: tuple[PlannedValue, ...]
    absent: tuple[Absent, ...]
    #: Numbers that are read only for checks. Their ``value`` is the path.
    witnesses: tuple[PlannedValue, ...] = ()


class _SourceMissing(Exception):
    """The server does not have this source; the message is the reason."""


@dataclass(frozen=True, slots=True)
class _Planner:
    target: Target
    catalog: MemoryCatalog
    layout: MemoryLayout
    status: Callable[[], Mapping[str, StatusVariable]]
    variables: Callable[[], Mapping[str, SystemVariable]]
    #: Terms by path, so that a term is read only once even if several values need it.
    terms: dict[str, Term] = field(default_factory=dict)

    def reading(self, value: str, source: MemorySource) -> PlannedValue:
        """Return a plan for reading the value from ``source``.

        Raise _SourceMissing if this build lacks one of its symbols, members or variables.
        """
        when = least = flags = reserve = None
        if source.paths:
            terms = tuple(self._member(path, pointers=bool(source.least)) for path in source.paths)
            when = self._member(source.when) if source.when else None
            flags = self._member(source.age_where) if source.age_where else None
            least = self._described(source.least) if source.least else None
            reserve = self._member(source.reserve, pointers=True) if source.reserve else None
            paths = " - ".join((" + ".join(source.paths), *source.minus))
            origin = f"symbol {paths}, offsets from {_described_by(self.layout)}"
        elif source.symbol:
            terms = (self._symbol(source.symbol, source.kind or "unsigned"),)
            origin = f"symbol {source.symbol}" + (f" / {source.per}" if source.per else "")
        elif source.status:
            terms = tuple(self._status(name, settled=source.settled) for name in source.statuses)
            copy = " (a copy of what SET GLOBAL changes)" if source.settled else ""
            origin = f"status variable {' + '.join(source.statuses)} in the server's own table{copy}"
        else:
            terms = (self._variable(source.variable or ""),)
            origin = f"system variable {source.variable} in the server's own table"
        plus = (self._member(source.plus.path), source.plus.bits) if source.plus else None
        return PlannedValue(
            value, terms, when, source.bits, source.scale, origin, source.settled, plus, source.unit,
            least, flags, reserve,
            minus=tuple(self._member(path) for path in source.minus),
            per=self._symbol(source.per, "unsigned") if source.per else None,
            clock=source.clock,
            assumed=frozenset(map(layouts.root, source.paths if self.layout.from_catalog else ())),
        )  # fmt: skip

    def _member(self, path: str, *, pointers: bool = False) -> Term:
        if path not in self.terms:
            self.terms[path] = self._find_member(path, pointers=pointers)
        return self.terms[path]

    def _find_member(self, path: str, *, pointers: bool) -> Term:
        root = layouts.root(path)
        if root not in self.layout.symbols:
            raise _SourceMissing(f"no symbol {root}")
        member = self._described(path, pointers=pointers)
        address = self.layout.symbols[root].address
        if (end := self.catalog.ends.get(layouts.array(path))) is not None:
            return Term(address, member, end=self._member(end, pointers=True))
        return Term(address, member, self._length(root, member))

    def _described(self, path: str, *, pointers: bool = False) -> Member:
        if not self.layout.described:
            raise _SourceMissing(f"no debug information for {path}")
        member = self.layout.members.get(path)
        if member is None:
            where = "catalog's layout" if self.layout.from_catalog else "debug information"
            raise _SourceMissing(self.layout.missing.get(path, f"{path} is not in the {where}"))
        if member.kind not in (("pointer",) if pointers else ("unsigned", "signed", "float")):
            raise _SourceMissing(f"{path} is not a {'pointer' if pointers else 'number'} but a {member.kind}")
        if not is_readable(member):
            raise _SourceMissing(
                f"{path} is not read: its size, or the distance between its elements, is implausibly large"
            )
        return member

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
    catalog: MemoryCatalog,
    layout: MemoryLayout,
    status: Callable[[], Mapping[str, StatusVariable]],
    variables: Callable[[], Mapping[str, SystemVariable]],
) -> MemoryPlan:
    """Return the plan for one server.

    ``status`` and ``variables`` search the server's tables. They are called only if a value needs a table.
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
            absent.append(Absent(value, _because(reasons), remedy(target, layout)))
    witnesses = [maker.reading(path, MemorySource(paths=(path,))) for path in layout.witnesses]
    return MemoryPlan(tuple(readings), tuple(absent), tuple(witnesses))


def _because(reasons: list[str]) -> str:
    return "; ".join(dict.fromkeys(reasons)) or "no source is known for this server"


def remedy(target: Target, layout: MemoryLayout) -> str:
    """Return the remedy for a value that this server's layout does not have."""
    if layout.described and not layout.from_catalog:
        return "this release does not store it in memory; SQL or a probe may provide it"
    if layout.problem:
        return f"{layout.problem}; or use the SQL collector"
    if target.build_id is None:
        return "run a build with debug information; or use the SQL collector"
    file = f"/usr/lib/debug/.build-id/{target.build_id[:2]}/{target.build_id[2:]}.debug"
    return f"install the server's debug package ({file}) or a symbol pack; or use the SQL collector"


def _described_by(layout: MemoryLayout) -> str:
    if layout.from_catalog:
        return "the catalog, confirmed by this build"
    return "a symbol pack" if layout.from_pack else "debug information"


def variable_term(address: int, kind: str) -> Term:
    """Return the term for a variable at ``address``. ``kind`` is its type, a key of ``TYPES``."""
    return Term(address, Member((0,), TYPES[kind][1], TYPES[kind][0]))
