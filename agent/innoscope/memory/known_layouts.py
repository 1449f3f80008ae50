"""Locate members of structures in stripped builds, using ``probes/catalog/layouts.yaml``.

A layout in the catalog is an assumption until the running build confirms it: by the sizes of its variables,
by the offsets in its machine code, and by its values (``LayoutCheck``). The catalog's header explains the
checks.
"""

from __future__ import annotations

import platform
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Annotated, Final, Literal

from msgspec import Meta, field

from innoscope._native import Member, Symbol
from innoscope.common.data import catalog_path
from innoscope.common.schema import Entry, ServerEntry, read_yaml
from innoscope.memory import layout as layouts
from innoscope.memory.numbers import read_many

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from pathlib import Path

    from innoscope.memory.layout import MemoryLayout
    from innoscope.memory.plan import PlannedValue
    from innoscope.memory.tables import StatusVariable
    from innoscope.target.model import Target

#: Smallest offset that machine code can confirm by containing its value. A smaller offset is encoded in one
#: byte, and any code may contain that byte by chance, so only whole ``instructions`` confirm it.
CONFIRMABLE: Final = 128
#: Maximum size in bytes of a function that is searched; the largest in the catalog is 12 KB.
_LARGEST: Final = 64 << 10
#: Architectures whose instructions contain offsets as 32-bit numbers.
_MACHINES: Final = frozenset({"x86_64"})

LayoutVerdict = Literal["holds", "undecided", "fails"]
_Offset = Annotated[int, Meta(ge=0, lt=1 << 20)]
#: Instructions in hexadecimal, such as ``49 89 47 20 e8``.
Instructions = Annotated[str, Meta(pattern="^[0-9a-f]{2}( [0-9a-f]{2}){4,31}$")]
_Offsets = Annotated[tuple[_Offset, ...], Meta(min_length=1, max_length=4)]


class Elements(Entry, frozen=True):
    """The size in bytes of the array elements that a pointer refers to, and a function that uses the size."""

    stride: Annotated[int, Meta(ge=CONFIRMABLE, lt=1 << 20)]
    code: str


class MemberGroup(Entry, frozen=True):
    """Members whose offsets occur in the code of one function; without ``code``, anchors confirm them.

    ``instructions`` lists the function's instructions that use the members, for offsets below CONFIRMABLE.
    """

    of: dict[str, _Offsets]
    code: str | None = None
    instructions: tuple[Instructions, ...] = ()
    kind: Literal["unsigned", "signed", "pointer"] = "unsigned"
    size: Literal[1, 8] = 8


class KnownLayout(ServerEntry, frozen=True, kw_only=True):
    """The layout of the structures of one version on one architecture."""

    machine: str
    members: tuple[MemberGroup, ...]
    sizes: dict[str, int] = field(default_factory=dict)
    numbers: tuple[str, ...] = ()
    elements: dict[str, Elements] = field(default_factory=dict)
    anchors: dict[str, dict[str, _Offset]] = field(default_factory=dict)
    witnesses: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Raise ValueError unless each variable can be confirmed."""
        if self.machine not in _MACHINES:
            raise ValueError(f"offsets in the code of {self.machine} cannot be confirmed")
        for group in self.members:
            for path, offsets in group.of.items():
                root = layouts.root(path)
                if group.code is None and len(self.anchors.get(root, ())) < 2:
                    raise ValueError(f"{path}: needs code, or two anchors of {root}")
                if group.code is not None and root not in self.sizes:
                    raise ValueError(f"{path}: the size of {root} is missing from sizes")
                array = layouts.array(path) if "[*]" in path else root
                if ("[*]" in path) != (array in self.elements and len(offsets) > 1):
                    raise ValueError(f"{path}: elements of {array} do not match")
        for root in self.roots - self.anchors.keys():
            if not any(True for _ in self.evidence(root)):
                raise ValueError(f"no offset in {root} can be confirmed")
        if missing := set(self.numbers) - self.sizes.keys():
            raise ValueError(f"the size of {min(missing)} is missing from sizes")

    @property
    def roots(self) -> set[str]:
        """Return the names of the variables that have members."""
        return {layouts.root(path) for group in self.members for path in group.of}

    @property
    def symbols(self) -> set[str]:
        """Return the names of the symbols that confirm the layout."""
        return self.functions | self.sizes.keys()

    @property
    def functions(self) -> set[str]:
        """Return the mangled names of the functions whose code confirms offsets."""
        codes = (group.code for group in self.members)
        return {code for code in codes if code} | {one.code for one in self.elements.values()}

    def evidence(self, root: str) -> Iterator[tuple[int | bytes, str]]:
        """Yield ``(number or instructions, function)``: what a function contains if the layout is correct."""
        yield from ((offset, code) for offset, code in self._offsets(root) if offset >= CONFIRMABLE)
        for group in self.members:
            if group.code is not None and any(layouts.root(path) == root for path in group.of):
                yield from ((bytes.fromhex(one), group.code) for one in group.instructions)
        for array, elements in self.elements.items():
            if layouts.root(array) == root:
                yield elements.stride, elements.code

    def _offsets(self, root: str) -> Iterator[tuple[int, str]]:
        for group in self.members:
            for path, offsets in group.of.items():
                if group.code is not None and layouts.root(path) == root:
                    yield from ((offset, group.code) for offset in offsets)

    def found(self, refused: Iterable[str]) -> dict[str, Member]:
        """Return the members of all variables that are not in ``refused``."""
        return {
            path: Member(offsets, group.size, group.kind, *self._array(path))
            for group in self.members
            for path, offsets in group.of.items()
            if layouts.root(path) not in refused
        } | {name: Member((0,), self.sizes[name], "unsigned") for name in self.numbers if name not in refused}

    def _array(self, path: str) -> tuple[int, int]:
        return (self.elements[layouts.array(path)].stride, 0) if "[*]" in path else (0, 1)


class Pool(Entry, frozen=True):
    """Names of the value and the system variables that describe the size of the buffer pool.

    Two sizes agree if the smaller one is at least the share ``at_least`` of the larger one.
    """

    pages: str
    page: str
    bytes: str
    at_least: float


class LayoutsFile(Entry, frozen=True):
    """The contents of layouts.yaml."""

    version: Literal[1]
    layouts: tuple[KnownLayout, ...]
    checks: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...]
    pool: Pool


@dataclass(frozen=True, slots=True)
class LayoutCheck:
    """A relation between ``values`` that holds if the layout is correct.

    ``judge`` returns ``undecided`` if the relation holds but would also hold for an incorrect layout.
    """

    text: str
    values: tuple[str, ...]
    judge: Callable[[Mapping[str, float]], LayoutVerdict]


def load(path: Path | None = None) -> LayoutsFile:
    """Read and check the catalog. Raise BadFile if it cannot be read or is invalid."""
    return read_yaml(path or catalog_path("layouts.yaml"), LayoutsFile)


def of(target: Target) -> KnownLayout | None:
    """Return the layout of the server's version, or None if the catalog has none."""
    machine = platform.machine()
    fitting = (one for one in _installed().layouts if one.fits(target.flavour, target.version))
    return next((one for one in fitting if one.machine == machine), None)


def describe(
    known: KnownLayout, pid: int, layout: MemoryLayout, status: Callable[[], Mapping[str, StatusVariable]]
) -> MemoryLayout:
    """Return the layout with the members of ``known`` that the running build confirms.

    ``status`` searches the server's table of status variables. Raise its errors, and NoSuchProcess or
    NoRights if the server's memory cannot be read.
    """
    symbols = {**layout.symbols, **_anchored(known, status)}
    refused = _refused(pid, known, symbols)
    members = known.found(refused)
    missing = {path: refused[layouts.root(path)] for path in known.found(()) if path not in members}
    return replace(
        layout,
        symbols=symbols,
        members=members,
        missing=missing,
        described=True,
        from_catalog=True,
        witnesses=tuple(
            path for path in known.witnesses.values() if path in members and layouts.root(path) in symbols
        ),
    )


def _anchored(known: KnownLayout, status: Callable[[], Mapping[str, StatusVariable]]) -> dict[str, Symbol]:
    """Return the variables whose anchors all yield the same address."""
    found = {}
    for root, anchors in known.anchors.items():
        table = status()
        bases = {table[name].address - at if name in table else 0 for name, at in anchors.items()}
        if len(bases) == 1 and (base := bases.pop()) > 0:
            found[root] = Symbol(base, 0)
    return found


def _refused(pid: int, known: KnownLayout, symbols: Mapping[str, Symbol]) -> dict[str, str]:
    """Return the variables whose layout the build does not confirm, with the reason."""
    refused = {}
    for name, size in known.sizes.items():
        if name in symbols and symbols[name].size != size:
            refused[name] = f"{name} has {symbols[name].size} bytes in this build, not {size}"
    code = read_code(pid, symbols, known.functions)
    for root in sorted(known.roots - refused.keys()):
        if reason := contradiction(code, symbols, known.evidence(root)):
            refused[root] = f"the layout of {root} {reason}"
    return refused


def contradiction(
    code: Mapping[str, bytes], symbols: Mapping[str, Symbol], evidence: Iterable[tuple[int | bytes, str]]
) -> str | None:
    """Return why the code, which ``read_code`` returned, does not confirm the evidence; None if it does.

    ``evidence`` yields ``(number or bytes of instructions, function that must contain them)``.
    """
    for one, function in evidence:
        expected = one if isinstance(one, bytes) else one.to_bytes(4, "little")
        if function not in code:
            return f"cannot be confirmed: {_unread(function, symbols.get(function))}"
        if expected not in code[function]:
            use = f"use {one:#x}" if isinstance(one, int) else f"contain the instructions {one.hex(' ')}"
            return f"differs in this build: {function} does not {use}"
    return None


def _unread(function: str, symbol: Symbol | None) -> str:
    """Return why ``read_code`` omitted a function."""
    if symbol is None:
        return f"no symbol {function}"
    if not 0 < symbol.size <= _LARGEST:
        return f"{function} has {symbol.size:,} bytes, and only 1 to {_LARGEST:,} are read"
    return f"cannot read the code of {function}"


def read_code(pid: int, symbols: Mapping[str, Symbol], names: Iterable[str]) -> dict[str, bytes]:
    """Return the machine code of the functions that have a symbol, read from the process.

    Functions that are larger than 64 KiB, or whose code cannot be read, are omitted. Raise NoSuchProcess or
    NoRights if the process cannot be read.
    """
    functions = {name: symbols[name] for name in names if name in symbols}
    places = [(one.address, one.size) for one in functions.values() if 0 < one.size <= _LARGEST]
    names = [name for name, one in functions.items() if 0 < one.size <= _LARGEST]
    return {name: code for name, code in zip(names, read_many(pid, places), strict=True) if code}


def run_checks(
    pending: Iterable[LayoutCheck], readings: Iterable[PlannedValue], values: Mapping[str, float]
) -> tuple[dict[str, str], tuple[LayoutCheck, ...]]:
    """Return the values whose layout fails a check, with the reason, and the checks that remain pending.

    A check that held once is not repeated, because the values are not read at the same instant. Checks of
    values that are not read, or whose layout is not from the catalog, are dropped.
    """
    assumed = {reading.value: reading.assumed for reading in readings}
    failed: dict[str, str] = {}
    remaining = []
    for check in pending:
        roots = {root for value in check.values for root in assumed.get(value, ())}
        if not roots or not assumed.keys() >= set(check.values):
            continue
        verdict = check.judge(values) if values.keys() >= set(check.values) else "fails"
        if verdict != "holds":
            remaining.append(check)
        if verdict == "fails":
            failed |= dict.fromkeys(roots, f"no values have confirmed the layout yet: {check.text}")
    withheld = {value: failed[root] for value, roots in assumed.items() for root in roots if root in failed}
    return withheld, tuple(remaining)


def checks(known: KnownLayout, variables: Callable[[], Mapping[str, float | str]]) -> tuple[LayoutCheck, ...]:
    """Return the checks for the layout's values. ``variables`` returns the server's system variables."""
    file = _installed()
    made = [_at_most(lower, upper) for lower, upper in file.checks]
    lists = [_list(pages, path, file.pool, variables) for pages, path in known.witnesses.items()]
    return (*made, _pool(file.pool, variables), *lists)


def _at_most(lower: tuple[str, ...], upper: tuple[str, ...]) -> LayoutCheck:
    return LayoutCheck(
        f"{' + '.join(lower)} <= {' + '.join(upper)}",
        (*lower, *upper),
        lambda values: _verdict(sum(values[one] for one in lower) <= sum(values[one] for one in upper) > 0),
    )


def _verdict(result: bool) -> LayoutVerdict:
    return "holds" if result else "fails"


def _pool(pool: Pool, variables: Callable[[], Mapping[str, float | str]]) -> LayoutCheck:
    def judge(values: Mapping[str, float]) -> LayoutVerdict:
        size, page = (_number(variables(), name) for name in (pool.bytes, pool.page))
        return _verdict(0 < pool.at_least * size <= values[pool.pages] * page <= size)

    return LayoutCheck(f"{pool.pages} * {pool.page} <= {pool.bytes}", (pool.pages,), judge)


def _list(
    pages: str, path: str, pool: Pool, variables: Callable[[], Mapping[str, float | str]]
) -> LayoutCheck:
    def judge(values: Mapping[str, float]) -> LayoutVerdict:
        expected = values[pages] * _number(variables(), pool.page)
        if expected == values[path] == 0:
            return "undecided"
        return _verdict(pool.at_least * max(expected, values[path]) <= min(expected, values[path]))

    return LayoutCheck(f"{pages} * {pool.page} = {path}", (pages, path), judge)


def _number(variables: Mapping[str, float | str], name: str) -> float:
    """Return a numeric system variable; 0 if the server lacks it or it is not a number."""
    value = variables.get(name, 0)
    return 0 if isinstance(value, str) else value


@cache
def _installed() -> LayoutsFile:
    return load()
