"""Choose the function to trace by probe name, symbol, qualified name or glob."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from innoscope import _native
from innoscope.common.errors import NoSuchProcess
from innoscope.probes.catalog import ProbeCatalog, default_catalog
from innoscope.probes.mangling import is_copy, is_part, is_symbol_of, symbol_prefixes
from innoscope.probes.symbol_resolution import MissingProbe, Placed, place
from innoscope.probes.trace import hot, suggestions
from innoscope.probes.trace.model import Ambiguous, NotTraceable, TracedFunction
from innoscope.target.native_errors import reading_files
from innoscope.target.symbols.advice import COMPLETE, remedy

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from innoscope._native import Function
    from innoscope.probes.catalog import Probe, Site
    from innoscope.target.model import Target

#: Maximum number of functions listed for an ambiguous name.
_LISTED: Final = 20
_GLOB: Final = frozenset("*?[")


def choose(target: Target, function: str) -> TracedFunction:
    """Return the function with all its live copies.

    Raise NotTraceable if it is not found or never called (the remedy lists similar names, or shows how to get
    symbols for a stripped server), Ambiguous if several functions match, NoSuchProcess if the server has
    exited, or NoRights if we are not allowed to access it.
    """
    catalog = default_catalog()
    if function in catalog.probes:
        return _from_catalog(target, catalog.probes[function], catalog)

    with reading_files(target.pid):
        file = _native.CodeFile(target.pid)
        if file.build_id != target.build_id:
            raise NoSuchProcess(
                f"process {target.pid} now runs another executable", remedy="innoscope targets"
            )
        found = _matching_glob(file, function) if _GLOB & set(function) else _named(file, function)
        if not found:
            raise _not_found(target, file, function)
        places = _without_dead_copies(file, _only_function(function, found))
    return _chosen(target, function, file.path, places, catalog)


def _from_catalog(target: Target, probe: Probe, catalog: ProbeCatalog) -> TracedFunction:
    placement = place(target, [probe])
    for missing in placement.missing:
        raise _missing(missing)
    [placed] = placement.placed
    names = ", ".join(dict.fromkeys(each.symbol for each in placed.places))
    known = next((known for each in placed.places if (known := hot.find(each.symbol))), None)
    return TracedFunction(
        name=f"{probe.name} ({names})" if names != probe.name else names,
        path=placed.path,
        places=placed.places,
        timed=_safe_reason(placed, catalog),
        limit=probe.limit,
        weight=max(probe.weight, known.weight if known else 1),
        why_hot=known.why if known else None,
        instead=known.instead if known else placed.site.instead,
        notes=(placed.note,) if placed.note else (),
    )


def _safe_reason(placed: Placed, catalog: ProbeCatalog) -> str | None:
    returns = placed.site.returns
    return returns if returns in catalog.safe else None


def _missing(missing: MissingProbe) -> NotTraceable:
    instead = f"instead: {missing.instead}" if missing.instead else None
    remedy = "\n".join(filter(None, (missing.remedy, instead))) or "innoscope probes list"
    return NotTraceable(f"{missing.probe.name}: {missing.reason}", remedy=remedy)


def _named(file: _native.CodeFile, function: str) -> list[Function]:
    """Return the functions whose symbol or qualified name is exactly ``function``, including copies."""
    matching = (
        found
        for found in file.functions([*symbol_prefixes(function), function])
        if is_symbol_of(found.symbol, [function]) or is_copy(found.symbol, [function])
    )
    return _distinct(matching)


def _matching_glob(file: _native.CodeFile, function: str) -> list[Function]:
    matches = suggestions.glob(function)
    return _distinct(
        found
        for found, name in suggestions.demangled(file)
        if matches(found.symbol) or matches(name.partition(" [clone ")[0])
    )


def _distinct(places: Iterable[Function]) -> list[Function]:
    """Return one Function per address, because a function may have several symbols. Omit ``.cold`` parts."""
    found: dict[int, Function] = {}
    for each in places:
        if ".cold" not in each.symbol:
            found.setdefault(each.address, each)
    return list(found.values())


def _only_function(function: str, places: Sequence[Function]) -> list[Function]:
    """Return ``places`` if all are copies of one function. Raise Ambiguous otherwise."""
    groups: dict[str, list[Function]] = {}
    for each in places:
        groups.setdefault(each.symbol.partition(".")[0], []).append(each)
    if len(groups) == 1:
        return list(places)
    lines = [f"{symbol}  {suggestions.readable(symbol)}" for symbol in sorted(groups)]
    if len(lines) > _LISTED:
        lines = [*lines[:_LISTED], f"… {len(lines) - _LISTED:,} more"]
    raise Ambiguous(
        f"{function}: {len(groups):,} functions have this name; choose one by its symbol",
        remedy="\n".join(lines),
    )


def _without_dead_copies(file: _native.CodeFile, places: list[Function]) -> tuple[Function, ...]:
    """Remove copies that nothing calls. Raise NotTraceable if none is left."""
    counts = file.references(places)
    if counts is None:
        return tuple(places)
    alive = tuple(each for each, count in zip(places, counts, strict=True) if count)
    if not alive:
        names = ", ".join(each.symbol for each in places)
        raise NotTraceable(
            f"{names}: a dead copy that nothing calls: all calls are inlined (link-time optimization)",
            remedy="trace one of its callers, or a function that it calls",
        )
    return alive


def _not_found(target: Target, file: _native.CodeFile, function: str) -> NotTraceable:
    names = suggestions.names(file, function)
    near = [f"similar names: {', '.join(names)}"] if names else []
    if file.symbols_from in COMPLETE:
        return NotTraceable(
            f"{function}: no such function in this build (misspelled, inlined or of another version)",
            remedy="\n".join([*near, "innoscope probes list shows the functions of the catalog"]),
        )

    return NotTraceable(
        f"{function}: the name is not exported, and this build is stripped",
        remedy="\n".join([remedy(target), *near]),
    )


def _chosen(
    target: Target, function: str, path: str, places: tuple[Function, ...], catalog: ProbeCatalog
) -> TracedFunction:
    found = _in_catalog(target, catalog, places)
    known = hot.find(places[0].symbol)
    weights = [probe.weight for probe, _ in found] + ([known.weight] if known else [])
    limits = [probe.limit for probe, _ in found if probe.limit]
    # A return probe requires a catalog probe that covers all copies and is known to be safe.
    timed = next((site.returns for _, site in found if site.returns in catalog.safe), None)
    return TracedFunction(
        name=suggestions.readable(places[0].symbol) if _GLOB & set(function) else function,
        path=path,
        places=places,
        timed=timed,
        limit=min(limits, default=None),
        weight=max(weights, default=1),
        why_hot=known.why if known else None,
        instead=known.instead if known else None,
        notes=_notes(places),
    )


def _in_catalog(
    target: Target, catalog: ProbeCatalog, places: Sequence[Function]
) -> list[tuple[Probe, Site]]:
    """Return the catalog's probes that cover all copies of a function, ``places``, on this server."""
    found = []
    for probe in catalog.probes.values():
        site = probe.site(target.flavour, target.version)
        if site is None or site.absent or site.libraries:
            continue
        if all(is_symbol_of(at.symbol, site.functions) or is_copy(at.symbol, site.symbols) for at in places):
            found.append((probe, site))
    return found


def _notes(places: Sequence[Function]) -> tuple[str, ...]:
    notes = []
    if len(places) > 1:
        notes.append(f"all copies are traced: {', '.join(each.symbol for each in places)}")
    if all(is_part(each.symbol) for each in places):
        notes.append("counts only some of the calls: the rest is inlined")
    return tuple(notes)
