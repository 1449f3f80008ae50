"""Locate a setting in a running server's memory, and check its type.

The mapped file's symbols, or else the server's own table of system variables, provide the address. The type
and size are those in the catalog. They must match the symbol, the debug information (or the symbol pack) and
the table, as far as these are available.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from innoscope import _native
from innoscope.common.errors import BadFile, InnoscopeError
from innoscope.memory import catalog as memory_catalog
from innoscope.memory import tables
from innoscope.memory.regions import Image
from innoscope.target.executable import DEBUG_DIR, Location, openable
from innoscope.target.native_errors import reading_files, translating
from innoscope.target.proc import ProcFs
from innoscope.target.symbols import packs
from innoscope.toggles.backends import gdb as backends_gdb
from innoscope.toggles.backends.gdb import Described
from innoscope.toggles.model import ChangeRefused, NotOnThisServer

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from innoscope.target.model import Target
    from innoscope.toggles.model import ToggledVariable

#: Sizes, in bytes, of numbers that the processor reads and writes atomically.
_SIZES: Final = (1, 2, 4, 8)
#: Types in the server's own table of variables -> (kind, bytes).
_TABLE_TYPES: Final[Mapping[str, tuple[str, int]]] = {
    "bool": ("unsigned", 1),
    "int32": ("signed", 4),
    "uint32": ("unsigned", 4),
    "int64": ("signed", 8),
    "uint64": ("unsigned", 8),
    "float64": ("float", 8),
}
_NOT_SAFE: Final = "nothing was written: use another backend, or report this build to Innoscope"


@dataclass(frozen=True, slots=True)
class SettingLocation:
    """The location of a number in the process.

    ``type`` is unsigned, signed or float; ``origin`` is the source of this information.
    """

    address: int
    size: int
    type: str
    origin: str


@dataclass(frozen=True, slots=True)
class Symbols:
    """The symbols of the mapped file: ``{name: {(address in the process, bytes)}}``.

    ``bias`` is the address in the process minus the ELF virtual address. ``described_in`` is the file with
    the debug information, or None.
    """

    places: Mapping[str, frozenset[tuple[int, int]]]
    source: str
    bias: int
    described_in: str | None


def find_all(
    target: Target, settings: Sequence[ToggledVariable], *, gdb: str = "gdb"
) -> dict[ToggledVariable, SettingLocation | InnoscopeError]:
    """Return the location of each setting in the process, or an error. gdb runs once for all settings.

    A setting is named after a global variable. If the server has no such symbol, the setting's
    ``variable`` (or its name) is looked up in the server's own table of system variables. The error is
    NotOnThisServer if the setting is missing, and ChangeRefused if it differs from the catalog. Raise
    NoSuchProcess or NoRights if the process cannot be read, or ChangeRefused if it runs a different build
    from ``target``.
    """
    names = [setting.name for setting in settings]
    symbols = learn(target, names)
    known = [name for name in names if name in symbols.places]
    described, by = _describe(target, symbols, known, gdb) if known else ({}, "")
    image = Image(target.pid)
    missing = len(described) < len(names)
    table = tables.system_variables(image, memory_catalog.load().tables.variables) if missing else {}

    def find(setting: ToggledVariable) -> SettingLocation:
        if setting.name in symbols.places:
            place = of_symbol(setting, symbols, described.get(setting.name), by)
            must_not_contradict(setting, place, table)
        else:
            place = of_table(setting, table, target)
        check_place(setting.name, place, image)
        return place

    found: dict[ToggledVariable, SettingLocation | InnoscopeError] = {}
    for setting in settings:
        try:
            found[setting] = find(setting)
        except ChangeRefused as error:
            found[setting] = error
    return found


def learn(target: Target, names: Sequence[str]) -> Symbols:
    """Return the symbols with these names in the mapped executable.

    Raise ChangeRefused if the process runs a different build from ``target``.
    """
    with reading_files(target.pid):
        debug_dirs = (DEBUG_DIR, target.inside(DEBUG_DIR))
        file = _native.CodeFile(target.pid, debug_dirs=debug_dirs)
        if file.build_id != target.build_id:
            raise ChangeRefused(
                f"process {target.pid} runs build {file.build_id}, not {target.build_id} as before",
                remedy="plan the change again: innoscope toggle plan …",
            )
        places: dict[str, set[tuple[int, int]]] = {}
        for one in file.variables(list(names)):
            if one.symbol in names:
                places.setdefault(one.symbol, set()).add((one.address, one.size))
        described_in: str | None = file.path
        if not _native.elf_info(file.path).has_debug_info:
            where = Location(target.executable, target.deleted, target.root)
            described_in = _native.find_debug_file(openable(ProcFs(), target.pid, where), debug_dirs)
            if described_in is not None and not _native.elf_info(described_in).has_debug_info:
                described_in = None
    frozen = {name: frozenset(found) for name, found in places.items()}
    return Symbols(frozen, file.symbols_from, file.bias, described_in)


def _describe(
    target: Target, symbols: Symbols, names: Sequence[str], gdb: str
) -> tuple[Mapping[str, Described], str]:
    """Return the variables' descriptions, and a phrase that names their source, for use in messages.

    gdb reads the debug information; if gdb fails, the Rust core reads it. Without debug information, a symbol
    pack is used.
    """
    if symbols.described_in is None:
        return _by_pack(target), "symbol pack"
    said = backends_gdb.describe(symbols.described_in, names, gdb)
    if said is not None:
        return said, "debug information, read by gdb"
    with translating(target.pid):
        found = _native.members_in_process(target.pid, list(names), [DEBUG_DIR, target.inside(DEBUG_DIR)], {})
    own = {}
    for name, member in (found.found if found else {}).items():
        [(address, _)] = list(symbols.places[name])[:1]
        own[name] = backends_gdb.without_gdb(member, address - symbols.bias)
    return own, "debug information, read without gdb"


def _by_pack(target: Target) -> Mapping[str, Described]:
    """Return the variables' descriptions from the symbol pack; empty if there is no trusted pack."""
    try:
        known = packs.layout(target.build_id)
    except BadFile:
        return {}  # ignore the pack; `innoscope toggle list` shows the reason
    return {name: Described(*variable) for name, variable in known.variables.items()} if known else {}


def of_symbol(
    setting: ToggledVariable, symbols: Symbols, described: Described | None, by: str
) -> SettingLocation:
    """Return a symbol's location.

    Raise ChangeRefused if the symbol is ambiguous, or if symbol, debug information and catalog disagree.
    """
    name, places = setting.name, symbols.places[setting.name]
    if len(places) != 1:
        where = ", ".join(f"{address:#x} ({size} bytes)" for address, size in sorted(places))
        raise ChangeRefused(
            f"cannot locate {name}: it occurs {len(places)} times in this build: {where}", remedy=_NOT_SAFE
        )
    [(address, size)] = places
    if described is None:
        return _agreed(
            setting, SettingLocation(address, size, setting.kind or "", f"symbol ({symbols.source})")
        )
    if described.address + symbols.bias != address or described.size != size:
        raise ChangeRefused(
            f"{name} is at {address:#x} with {size} bytes by its symbol, and at "
            f"{described.address + symbols.bias:#x} with {described.size} bytes by its debug information",
            remedy=_NOT_SAFE,
        )
    kind = described.kind
    if kind == "char" and setting.kind in ("unsigned", "signed"):
        kind = setting.kind
    if kind != setting.kind:
        raise ChangeRefused(
            f"{name} is of type {described.text} in this build, but {setting.kind} in the catalog",
            remedy=_NOT_SAFE,
        )
    return _agreed(setting, SettingLocation(address, size, kind, by))


def must_not_contradict(
    setting: ToggledVariable, place: SettingLocation, table: Mapping[str, tables.SystemVariable]
) -> None:
    """Raise ChangeRefused if the server's own table contradicts the setting's address or type."""
    shown = table.get(setting.variable or "")
    if shown is not None and shown.address != place.address:
        raise ChangeRefused(
            f"{setting.name} is at {place.address:#x}, but the server has {shown.name} at {shown.address:#x}",
            remedy=_NOT_SAFE,
        )
    for variable in table.values():
        said = _TABLE_TYPES.get(variable.type, ("other", 0))
        if variable.address == place.address and said != (place.type, place.size):
            raise ChangeRefused(
                f"{setting.name} is {place.type} of {place.size} bytes in the catalog, and the server has "
                f"{variable.name} there, which is {variable.type}",
                remedy=_NOT_SAFE,
            )


def of_table(
    setting: ToggledVariable, table: Mapping[str, tables.SystemVariable], target: Target
) -> SettingLocation:
    """Return a variable's location from the server's table of system variables.

    Raise NotOnThisServer if the table does not have the variable, or ChangeRefused if the variable's type or
    size is not the one in the catalog.
    """
    name = setting.variable or setting.name
    variable = table.get(name)
    if variable is None:
        raise NotOnThisServer(
            f"{target.executable} has no symbol {setting.name}, and its table of variables has no {name}",
            remedy="install the debug symbols of exactly this build, or use the SQL backend",
        )
    kind, size = _TABLE_TYPES.get(variable.type, ("other", 0))
    if kind != setting.kind:
        raise ChangeRefused(
            f"{name} is {variable.type} in the server's table of system variables, "
            f"but {setting.kind} in the catalog",
            remedy=_NOT_SAFE,
        )
    return _agreed(
        setting, SettingLocation(variable.address, size, kind, "the server's table of system variables")
    )


def _agreed(setting: ToggledVariable, place: SettingLocation) -> SettingLocation:
    if place.type not in ("unsigned", "signed", "float") or setting.size is None:
        raise ChangeRefused(
            f"the catalog does not define the type of {setting.name}", remedy="add kind and size"
        )
    if place.size != setting.size:
        raise ChangeRefused(
            f"{setting.name} has {place.size} bytes in this build, but {setting.size} in the catalog",
            remedy=_NOT_SAFE,
        )
    return place


def check_place(name: str, place: SettingLocation, image: Image) -> None:
    """Raise ChangeRefused unless the location is an aligned number in the executable's writable memory."""
    if place.size not in _SIZES or (place.type == "float" and place.size < 4):
        raise ChangeRefused(
            f"{name} has {place.size} bytes, which is not a valid size of type {place.type}", remedy=_NOT_SAFE
        )
    if place.address % place.size:
        raise ChangeRefused(
            f"{name} at {place.address:#x} is not aligned to {place.size} bytes", remedy=_NOT_SAFE
        )
    if not (image.is_data(place.address) and image.is_data(place.address + place.size - 1)):
        raise ChangeRefused(
            f"{name} at {place.address:#x} is not in the executable's writable memory", remedy=_NOT_SAFE
        )
