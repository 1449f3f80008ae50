"""Find the server's own tables of status and system variables in its memory.

The tables map names to the addresses of values. ``strip`` does not remove them, so this works on a server
without any InnoDB symbols. The dynamic linker has relocated the tables, so their pointers are valid
addresses. A table is accepted only if many adjacent records are plausible.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from innoscope.memory import catalog
    from innoscope.memory.regions import Image

_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_-]{1,63}")
#: Minimum number of adjacent records for a table to be accepted as InnoDB's.
_LEAST: Final = 20
#: Maximum number of records read in each direction. The longest table known has 120 (MariaDB 10.5).
_MOST: Final = 400

#: struct st_mysql_show_var (include/mysql/plugin.h) or, since MySQL 8.0, SHOW_VAR (status_var.h): name,
#: value, type and, in newer MySQL, scope.
_SHOW: Final = struct.Struct("<QQII")
#: struct st_mysql_sys_var (SYS_VAR since MySQL 8.0): flags, name, comment, check, update, value, default,
#: then fields that depend on the type.
_SYSVAR: Final = struct.Struct("<IxxxxQQQQQQQ")
#: Bits of ``flags``: PLUGIN_VAR_TYPEMASK, _UNSIGNED, _THDLOCAL, _NOSYSVAR.
_TYPE_MASK, _UNSIGNED, _PER_SESSION, _OPTION_ONLY = 0x7F, 0x80, 0x100, 0x400
_STRING, _ENUM = 5, 6  # PLUGIN_VAR_STR, PLUGIN_VAR_ENUM
#: PLUGIN_VAR_*: type code -> type of the value if signed, and if unsigned.
_VARIABLE_TYPES: Final[Mapping[int, tuple[str, str]]] = {
    1: ("bool", "bool"),
    2: ("int32", "uint32"),
    3: ("int64", "uint64"),
    4: ("int64", "uint64"),
    _STRING: ("string", "string"),
    _ENUM: ("uint64", "uint64"),
    7: ("uint64", "uint64"),
    8: ("float64", "float64"),
}


@dataclass(frozen=True, slots=True)
class StatusVariable:
    """A status variable. ``live`` is false for a copy that only SHOW STATUS updates."""

    name: str
    address: int
    type: str
    live: bool


@dataclass(frozen=True, slots=True)
class SystemVariable:
    """A system variable. ``type`` is bool, int32, uint32, int64, uint64, float64, or string (a char pointer).

    ``choices`` lists the names of an enumeration's values, in the order of their numbers.
    """

    name: str
    address: int
    type: str
    choices: tuple[str, ...] = ()


def status_variables(image: Image, table: catalog.StatusTable, flavour: str) -> dict[str, StatusVariable]:
    """Return InnoDB's status variables, keyed by name in SHOW STATUS; empty if the table was not found."""
    types = table.types[flavour]
    for anchor in table.anchors:
        # There may be several copies, because the linker can merge a string with the end of a longer one.
        for slot in image.slots(image.copies(anchor.encode() + b"\0")):
            records = _Row(image, _SHOW.size, lambda raw: _is_status(image, raw)).around(slot)
            if len(records) >= _LEAST:
                return _named_status(image, records, table, types, table.live[flavour])
    return {}


def system_variables(image: Image, table: catalog.VariableTable) -> dict[str, SystemVariable]:
    """Return InnoDB's global-only system variables, keyed by name in SHOW VARIABLES.

    The table cannot be found by searching for a name's address, because the server moves each record's name
    to the heap when it loads the plugin.
    """
    for records in image.rows(_LEAST):
        if _sysvar(image, records[0]) is not None:
            found = _named_variables(image, records, table)
            if all(table.prefix + anchor in found for anchor in table.anchors):
                return found
    return {}


class _Row:
    """Reads adjacent records of ``size`` bytes. ``fits`` returns whether a record is plausible."""

    def __init__(self, image: Image, size: int, fits: Callable[[bytes], bool]) -> None:
        self._image = image
        self._size = size
        self._fits = fits

    def around(self, address: int) -> list[bytes]:
        """Return the record at the address and its neighbors, up to an implausible one on each side."""
        before = self._run(range(address - self._size, address - _MOST * self._size, -self._size))
        return [*reversed(before), *self._run(range(address, address + _MOST * self._size, self._size))]

    def _run(self, addresses: range) -> list[bytes]:
        region = self._image.at(addresses[0])
        if region is None:
            return []
        inside = [at for at in addresses if region.start <= at and at + self._size <= region.end]
        found = []
        for raw in self._image.read([(at, self._size) for at in inside]):
            if raw is None or not self._fits(raw):
                break
            found.append(raw)
        return found


def _is_status(image: Image, raw: bytes) -> bool:
    name, value, kind, _ = _SHOW.unpack(raw)
    return kind < 64 and image.at(value) is not None and _is_name(image, name)


def _is_name(image: Image, address: int) -> bool:
    [name] = image.strings([address])
    return name is not None and _NAME.fullmatch(name) is not None


def _named_status(
    image: Image,
    records: list[bytes],
    table: catalog.StatusTable,
    types: Mapping[int, str],
    live: frozenset[str],
) -> dict[str, StatusVariable]:
    fields = [_SHOW.unpack(raw) for raw in records]
    # Names are converted to lower case, because MariaDB uses mixed case:
    # Innodb_buffer_pool_pages_LRU_flushed.
    names = [table.prefix + (name or "").lower() for name in image.strings([field[0] for field in fields])]
    copies = [field[1] for name, field in zip(names, fields, strict=True) if name in table.copies]
    first, last = (min(copies), max(copies)) if copies else (0, 1 << 64)
    return {
        name: StatusVariable(name, value, types[kind], name in live and not first <= value <= last)
        for name, (_, value, kind, _) in zip(names, fields, strict=True)
        if kind in types and image.is_data(value)
    }


def _sysvar(image: Image, address: int) -> tuple[int, ...] | None:
    """Return a record's fields, or None if it is implausible.

    A record is implausible if its type is unknown, or if a pointer points to the wrong kind of region.
    """
    [raw] = image.read([(address, _SYSVAR.size)])
    if raw is None:
        return None
    fields: tuple[int, ...] = _SYSVAR.unpack(raw)
    flags, name, comment, check, update, value = fields[:6]
    functions = (image.at(function) for function in (check, update) if function)
    if flags & _TYPE_MASK not in _VARIABLE_TYPES or flags >> 24 or image.at(comment) is None:
        return None
    if not all(region is not None and region.code for region in functions):
        return None
    if not flags & _PER_SESSION and not image.is_data(value):
        return None
    return fields if _is_name(image, name) else None


def _named_variables(
    image: Image, records: list[int], table: catalog.VariableTable
) -> dict[str, SystemVariable]:
    found = {}
    for one in records:
        fields = _sysvar(image, one)
        if fields is None or fields[0] & (_PER_SESSION | _OPTION_ONLY):
            continue
        flags, name_at, value = fields[0], fields[1], fields[5]
        [name] = image.strings([name_at])
        full = table.prefix + (name or "").replace("-", "_").lower().removeprefix(table.prefix)
        kind = flags & _TYPE_MASK
        choices = _choices(image, fields[7]) if kind == _ENUM else ()
        found[full] = SystemVariable(full, value, _VARIABLE_TYPES[kind][bool(flags & _UNSIGNED)], choices)
    return found


def _choices(image: Image, address: int) -> tuple[str, ...]:
    """Return the names in a TYPELIB, which consists of a count, its own name, and an array of names."""
    [raw] = image.read([(address, 24)])
    if raw is None:
        return ()
    count, _, words = struct.unpack("<IxxxxQQ", raw)
    [pointers] = image.read([(words, 8 * min(count, 64))])
    if pointers is None:
        return ()
    return tuple(
        word or "" for word in image.strings([int(p) for (p,) in struct.iter_unpack("<Q", pointers)])
    )
