"""Translate the addresses that BPF programs use as map keys into mutex names and source lines."""

from __future__ import annotations

from typing import TYPE_CHECKING

from innoscope import _native

if TYPE_CHECKING:
    from collections.abc import Iterable

#: sizeof(pthread_mutex_t) in glibc on x86-64; it is 48 on arm64. The server's own mutex types start with a
#: pthread_mutex_t.
_MUTEX_BYTES = 40
_LONGEST_PATH = 256


def exported_mutexes(pid: int, most: int) -> list[tuple[str, int]]:
    """Return up to ``most`` of the server's LOCK_* variables that may be mutexes: ``(symbol, address)``."""
    mutexes = [
        (found.symbol, found.address)
        for found in _native.CodeFile(pid).variables(["LOCK_", "_ZL5LOCK_"])
        if found.size >= _MUTEX_BYTES
    ]
    return sorted(mutexes)[:most]


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
