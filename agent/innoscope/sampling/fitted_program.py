"""Cache the snapshot program as relocated for this kernel, because relocation takes 15 ms of CPU time."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import TYPE_CHECKING, Final

from innoscope.common.cache import Cache, cache_key

if TYPE_CHECKING:
    from collections.abc import Callable

    from innoscope._native import Process

#: At most 8 files. Each kernel build has two: one with and one without kernel stacks.
_CACHE: Final = Cache("fitted", 8)
#: Header of an ELF note: size of the name, size of the contents, type (elf.h).
_HEAD: Final = struct.Struct("=III")
#: Type and name of the note with the build-id.
_BUILD_ID: Final = (3, b"GNU\0")


def open_process(opened: Callable[[bytes | None], Process], *, kernel: bool) -> Process:
    """Return the process that ``opened`` creates from the cached program, or from None if none is cached.

    A newly relocated program is written to the cache.
    """
    build = kernel_build()
    if build is None:
        return opened(None)
    key = cache_key(build, f"kernel={kernel}")
    process = opened(_CACHE.read(key))
    if process.fitted is not None:
        _CACHE.write(key, process.fitted)
    return process


def kernel_build(notes: Path = Path("/sys/kernel/notes")) -> str | None:
    """Return the build-id of the running kernel, which differs between builds of the same version.

    Return None if the kernel was linked without a build-id, or if we cannot read it.
    """
    try:
        data = notes.read_bytes()
    except OSError:
        return None
    at = 0
    while at + _HEAD.size <= len(data):
        name_bytes, bytes_, kind = _HEAD.unpack_from(data, at)
        name_at = at + _HEAD.size
        begin = name_at + _aligned(name_bytes)
        at = begin + _aligned(bytes_)
        if (kind, data[name_at : name_at + name_bytes]) == _BUILD_ID:
            return data[begin : begin + bytes_].hex()
    return None


def _aligned(count: int) -> int:
    return count + 3 & ~3
