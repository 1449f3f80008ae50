"""Find the functions to probe in one server, and explain why others cannot be probed."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

from innoscope import _native
from innoscope._native import Function
from innoscope.common.cache import Cache, cache_key
from innoscope.common.errors import BadFile
from innoscope.common.typed import decode_json, encode_json
from innoscope.probes.catalog import default_catalog
from innoscope.probes.mangling import is_copy, is_part, is_symbol_of, symbol_prefixes
from innoscope.target.native_errors import failure, reading_files
from innoscope.target.symbols.advice import COMPLETE, remedy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from innoscope.probes.catalog import Probe, Site
    from innoscope.target.model import Target

#: Cached search results. Each file needs two entries.
_CACHE: Final = Cache("places", 128)

T = TypeVar("T")
#: The fields of a Function, for the cache.
_Fields: TypeAlias = tuple[str, int, int, int, bool]
_Counts: TypeAlias = list[int] | None


@dataclass(frozen=True, slots=True)
class Placed:
    """A probe and all copies of its function. ``note`` states what the probe's counts omit."""

    probe: Probe
    site: Site
    path: str  # path at which the mapped file can be opened
    places: tuple[Function, ...]
    note: str | None = None

    @property
    def feeds(self) -> tuple[str, ...]:
        """Return the metrics that this probe feeds on this server."""
        return (*self.probe.feeds, *self.site.feeds)


@dataclass(frozen=True, slots=True)
class MissingProbe:
    """A probe without a function to probe on this server: the reason, a remedy, and an alternative source."""

    probe: Probe
    reason: str
    remedy: str | None = None
    instead: str | None = None


@dataclass(frozen=True, slots=True)
class Placement:
    """The probes of one server, found or missing. ``build_id`` identifies the executable.

    ``problem`` is the reason why a better source of symbols could not be used.
    """

    placed: tuple[Placed, ...]
    missing: tuple[MissingProbe, ...]
    build_id: str | None
    symbols_from: str
    problem: str | None = None


def place(target: Target, probes: Iterable[Probe]) -> Placement:
    """Find the functions of ``probes`` in the server's mapped files.

    Raise NoSuchProcess, NoRights or BadFile if the executable cannot be read. If a library is not mapped,
    its probes are in ``missing``.
    """
    with reading_files(target.pid):
        sites = [(probe, probe.site(target.flavour, target.version)) for probe in probes]
        files = _Files(target.pid, [site for _, site in sites if site is not None])
        found = [_place_one(target, probe, site, files) for probe, site in sites]
        placed = _without_dead_copies([each for each in found if isinstance(each, Placed)], files)
    missing = [each for each in (*found, *placed) if isinstance(each, MissingProbe)]
    return Placement(
        placed=tuple(each for each in placed if isinstance(each, Placed)),
        missing=tuple(missing),
        build_id=files.main.build_id,
        symbols_from=files.main.symbols_from,
        problem=files.main.problem,
    )


#: Placeholder for the server's executable where libraries are identified by name.
_MAIN: Final = ""


class _Files:
    """The mapped files that contain the sites. Each is opened once, and searched once for all its sites."""

    def __init__(self, pid: int, sites: Sequence[Site]) -> None:
        self._pid, self._sites = pid, sites
        self.main = _native.CodeFile(pid)
        self._libraries: dict[str, _native.CodeFile | _native.NativeError] = {}
        self._found: dict[str, list[Function]] = {}

    def places(self, site: Site) -> tuple[_native.CodeFile, tuple[Function, ...]]:
        """Return the site's file and all copies of its functions, without duplicate addresses.

        If the site lists several libraries, the first one that contains a function is used. Raise NativeError
        (elf) if none of the libraries is mapped.
        """
        if not site.libraries:
            return self.main, self._places(_MAIN, self.main, site)
        files = [(name, self._library(name)) for name in site.libraries]
        mapped = [(name, file) for name, file in files if isinstance(file, _native.CodeFile)]
        if not mapped:
            raise next(file for _, file in files if isinstance(file, _native.NativeError))
        every = ((file, self._places(name, file, site)) for name, file in mapped)
        return next((one for one in every if one[1]), (mapped[-1][1], ()))

    def _library(self, name: str) -> _native.CodeFile | _native.NativeError:
        """Return the mapped file whose name begins with ``name``, or an error (elf) if there is none."""
        if name not in self._libraries:
            try:
                self._libraries[name] = _native.CodeFile(self._pid, name)
            except _native.NativeError as error:
                if failure(error).kind != "elf":
                    raise
                self._libraries[name] = error
        return self._libraries[name]

    def _places(self, name: str, file: _native.CodeFile, site: Site) -> tuple[Function, ...]:
        if name not in self._found:
            libraries = (each.libraries or (_MAIN,) for each in self._sites)
            sites = zip(self._sites, libraries, strict=True)
            names = sorted({text for each, files in sites if name in files for text in _prefixes(each)})
            found = _cached(
                file, names, list[_Fields], lambda: [_fields(each) for each in file.functions(names)]
            )
            self._found[name] = [Function(*each) for each in found]
        own = [
            place
            for place in self._found[name]
            if is_symbol_of(place.symbol, site.functions) or is_copy(place.symbol, site.symbols)
        ]
        return tuple({place.address: place for place in reversed(own)}.values())[::-1]


def _fields(function: Function) -> _Fields:
    """Return the fields of a Function as a tuple, for the cache."""
    return function.symbol, function.address, function.size, function.offset, function.stepped


def _cached(file: _native.CodeFile, query: Any, kind: Any, search: Callable[[], T]) -> T:
    """Return the result of ``search``, which has the type ``kind``, from the cache if possible.

    Results from a symbol pack are not cached, because the pack may be replaced while the file stays the same.
    """
    if file.symbols_from == "symbol-pack":
        return search()
    try:
        status = Path(file.path).stat()
    except OSError:  # the server has just exited, or the kernel denies access to the file
        return search()
    identity = (file.build_id, status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
    key = cache_key(json.dumps((identity, file.symbols_from, query)))
    if (cached := _CACHE.read(key)) is not None:
        with suppress(BadFile):  # written by another build of this version
            known: T = decode_json(cached, kind, "the cached result")
            return known
    found = search()
    _CACHE.write(key, encode_json(found))
    return found


def _prefixes(site: Site) -> Iterable[str]:
    """Yield the prefixes of the site's symbols."""
    yield from site.symbols
    for function in site.functions:
        yield from symbol_prefixes(function)


def _place_one(target: Target, probe: Probe, site: Site | None, files: _Files) -> Placed | MissingProbe:
    if site is None:
        return MissingProbe(probe, f"no function is known for {target.flavour} {target.version_text}")
    if site.absent:
        return MissingProbe(probe, site.absent, instead=site.instead)
    if not site.libraries and not default_catalog().knows(target.flavour, target.version):
        reason = f"the catalog does not know {target.flavour} {target.version_text}: its functions may differ"
        return MissingProbe(probe, reason)
    try:
        file, places = files.places(site)
    except _native.NativeError as error:
        found = failure(error)
        if found.kind != "elf":
            raise
        return MissingProbe(probe, found.detail)
    if not places:
        return _not_found(target, probe, site, file)
    note = "counts only some of the calls: the rest is inlined" if _only_parts(places) else None
    return Placed(probe, site, file.path, places, note)


def _only_parts(places: Sequence[Function]) -> bool:
    return all(is_part(place.symbol) for place in places)


def _not_found(target: Target, probe: Probe, site: Site, file: _native.CodeFile) -> MissingProbe:
    names = ", ".join((*site.functions, *site.symbols))
    if site.without:
        return MissingProbe(probe, site.without, instead=site.instead)
    if file.symbols_from in COMPLETE:
        return MissingProbe(probe, f"{names}: not in this build (inlined or removed)", instead=site.instead)

    return MissingProbe(
        probe,
        f"{names}: the name is not exported, and this build is stripped",
        remedy=remedy(target),
        instead=site.instead,
    )


def _without_dead_copies(placed: Sequence[Placed], files: _Files) -> list[Placed | MissingProbe]:
    """Remove dead copies: link-time optimization left their symbols, but nothing calls them.

    A probe whose function has no live copy becomes MissingProbe.
    """
    own = [place for each in placed if not each.site.libraries for place in each.places]
    bodies = [(place.address, place.size) for place in own]
    counts = _cached(files.main, bodies, _Counts, lambda: files.main.references(own))
    if counts is None:
        return list(placed)
    dead = {place.address for place, count in zip(own, counts, strict=True) if not count}
    return [each if each.site.libraries else _without_dead(each, dead) for each in placed]


def _without_dead(placed: Placed, dead: set[int]) -> Placed | MissingProbe:
    alive = tuple(place for place in placed.places if place.address not in dead)
    if alive:
        return Placed(placed.probe, placed.site, placed.path, alive, placed.note)
    names = ", ".join(place.symbol for place in placed.places)
    return MissingProbe(
        placed.probe,
        f"{names}: a dead copy that nothing calls (link-time optimization)",
        instead=placed.site.instead,
    )
