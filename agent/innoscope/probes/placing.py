"""Which probes can go where on one server, and why the others cannot."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from innoscope.probes.mangled import beginnings, is_partial, pattern, symbol_pattern
from innoscope.target.native_errors import translating
from innoscope.target.reading import ONE_AT_A_TIME

if TYPE_CHECKING:
    import re
    from collections.abc import Iterable, Sequence

    from innoscope._native import CodeFile
    from innoscope.probes.catalog import Probe, Site
    from innoscope.target.model import Target


@dataclass(frozen=True, slots=True)
class Place:
    """One function of one mapped file. ``offset`` is in the file, in bytes."""

    symbol: str
    address: int  # ELF virtual address
    size: int
    offset: int
    stepped: bool  # the kernel cannot emulate its first instruction: a hit costs several times as much


@dataclass(frozen=True, slots=True)
class Placed:
    """A probe and all copies of the function that it goes to. ``note`` says what its numbers leave out."""

    probe: Probe
    site: Site
    path: str  # opens the mapped file
    places: tuple[Place, ...]
    note: str | None = None

    @property
    def feeds(self) -> tuple[str, ...]:
        """The metrics that get their numbers from it on this server."""
        return (*self.probe.feeds, *self.site.feeds)


@dataclass(frozen=True, slots=True)
class Missing:
    """A probe that cannot be there: why, what to do about it, what tells it instead."""

    probe: Probe
    reason: str
    remedy: str | None = None
    instead: str | None = None


@dataclass(frozen=True, slots=True)
class Placement:
    """The probes of one server. ``build_id`` is that of the mapped executable.

    ``problem`` is why a better source of names could not be used, in words.
    """

    placed: tuple[Placed, ...]
    missing: tuple[Missing, ...]
    build_id: str | None
    symbols_from: str
    problem: str | None = None


def place(target: Target, probes: Iterable[Probe]) -> Placement:
    """Look for the functions of these probes in the server's mapped files.

    Raises NoSuchProcess, NoRights or BadFile for the executable itself; for a library that is not mapped the
    probe is missing.
    """
    with ONE_AT_A_TIME, translating(target.pid):
        files = _Files(target.pid)
        found = [_place_one(target, probe, files) for probe in probes]
        placed = _alive([each for each in found if isinstance(each, Placed)], files)
    missing = [each for each in (*found, *placed) if isinstance(each, Missing)]
    return Placement(
        placed=tuple(each for each in placed if isinstance(each, Placed)),
        missing=tuple(missing),
        build_id=files.main.build_id,
        symbols_from=files.main.symbols_from,
        problem=files.main.problem,
    )


class _Files:
    """The mapped files that are asked for, each opened once."""

    def __init__(self, pid: int) -> None:
        from innoscope._native import CodeFile

        self._pid = pid
        self.main = CodeFile(pid)
        self._libraries: dict[str, CodeFile] = {}

    def of(self, site: Site) -> CodeFile:
        """The file of a site. NativeError (elf) if it is not mapped."""
        if site.shared_object is None:
            return self.main
        if site.shared_object not in self._libraries:
            from innoscope._native import CodeFile

            self._libraries[site.shared_object] = CodeFile(self._pid, site.shared_object)
        return self._libraries[site.shared_object]


def _place_one(target: Target, probe: Probe, files: _Files) -> Placed | Missing:
    from innoscope._native import NativeError

    site = probe.site(target.flavour, target.version)
    if site is None:
        return Missing(probe, f"no such function is known for {target.flavour} {target.version_text}")
    if site.absent:
        return Missing(probe, site.absent, instead=site.instead)
    try:
        file = files.of(site)
    except NativeError as error:
        if error.args[0] != "elf":
            raise
        return Missing(probe, str(error.args[1]))
    places = _search(file, site)
    if not places:
        return _not_found(target, probe, site, file)
    note = "counts only some of the calls: the rest is inlined" if _only_parts(places) else None
    return Placed(probe, site, file.path, places, note)


def _search(file: CodeFile, site: Site) -> tuple[Place, ...]:
    wanted = [text for function in site.functions for text in beginnings(function)]
    patterns = [*map(pattern, site.functions), *map(symbol_pattern, site.symbols)]
    places: dict[int, Place] = {}
    for found in file.functions([*wanted, *site.symbols]):
        if _matches(patterns, found[0]):
            places.setdefault(found[1], Place(*found))
    return tuple(places.values())


def _matches(patterns: Sequence[re.Pattern[str]], symbol: str) -> bool:
    return any(each.fullmatch(symbol) for each in patterns)


def _only_parts(places: Sequence[Place]) -> bool:
    return all(is_partial(place.symbol) for place in places)


def _not_found(target: Target, probe: Probe, site: Site, file: CodeFile) -> Missing:
    names = ", ".join((*site.functions, *site.symbols))
    if site.without:
        return Missing(probe, site.without, instead=site.instead)
    if file.symbols_from in {"symtab", "debug-file", "symbol-pack"}:
        return Missing(probe, f"{names}: not in this build (inlined or removed)", instead=site.instead)
    from innoscope.stacks.advice import remedy

    return Missing(
        probe,
        f"{names}: the name is not exported, and this build is stripped",
        remedy=remedy(target),
        instead=site.instead,
    )


def _alive(placed: Sequence[Placed], files: _Files) -> list[Placed | Missing]:
    """Without dead copies: exported by link-time optimisation, and nothing calls them."""
    own = [
        (place.address, place.size) for each in placed if not each.site.shared_object for place in each.places
    ]
    counts = files.main.references(own)
    if counts is None:
        return list(placed)
    dead = {address for (address, _), count in zip(own, counts, strict=True) if not count}
    return [each if each.site.shared_object else _without_dead(each, dead) for each in placed]


def _without_dead(placed: Placed, dead: set[int]) -> Placed | Missing:
    alive = tuple(place for place in placed.places if place.address not in dead)
    if alive:
        return Placed(placed.probe, placed.site, placed.path, alive, placed.note)
    names = ", ".join(place.symbol for place in placed.places)
    return Missing(
        placed.probe,
        f"{names}: a dead copy, nothing calls it (link-time optimisation)",
        instead=placed.site.instead,
    )
