"""Translate the addresses that BPF programs use as map keys into mutex names and source lines."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from innoscope import _native

if TYPE_CHECKING:
    from collections.abc import Iterable

#: Minimum size of a mutex variable: sizeof(pthread_mutex_t) in glibc on x86-64 (48 on arm64). The server's
#: own mutex types start with a pthread_mutex_t.
_MUTEX_BYTES: Final = 40
#: The prefix of a static variable's mangled name: ``_ZL15LOCK_audit_mask``. The number is the name's length.
_STATIC: Final = re.compile(r"_ZL[0-9]+")
_LONGEST_NAME: Final = 64
_LONGEST_PATH: Final = 256


def global_mutexes(pid: int, most: int) -> list[tuple[str, int]]:
    """Return up to ``most`` variables LOCK_* that may be mutexes, as ``(name, address)``.

    Static variables are last. If several have the same name, one of them is returned.
    """
    prefixes = ["LOCK_", *(f"_ZL{length}LOCK_" for length in range(len("LOCK_x"), _LONGEST_NAME))]
    found = [each for each in _native.CodeFile(pid).variables(prefixes) if each.size >= _MUTEX_BYTES]
    found.sort(key=lambda each: (each.symbol.startswith("_ZL"), each.symbol))
    mutexes: dict[str, int] = {}
    for each in found:
        mutexes.setdefault(_STATIC.sub("", each.symbol), each.address)
    return list(mutexes.items())[:most]


def site_names(pid: int, sites: Iterable[tuple[int, int]]) -> dict[tuple[int, int], str]:
    """Return ``{(address of the file name, line): "file:line"}``, with only the base name of each file."""
    names = {}
    files: dict[int, str] = {}
    for address, line in sites:
        if address not in files:
            files[address] = _string(pid, address)
        names[address, line] = f"{files[address].rsplit('/', 1)[-1]}:{line}"
    return names


def _string(pid: int, address: int) -> str:
    for size in (_LONGEST_PATH, 32):  # near the end of a mapping, only a shorter read succeeds
        try:
            return _native.read_memory(pid, address, size).split(b"\0", 1)[0].decode(errors="replace")
        except (_native.NativeError, OSError):
            continue
    return f"{address:#x}"
