"""Configure the C library's malloc for processes that run for weeks."""

from __future__ import annotations

import ctypes
from contextlib import suppress
from typing import Final

#: Parameters of mallopt() (malloc.h).
_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
_M_ARENA_MAX: Final = -8
#: Maximum number of arenas. By default, each thread may get its own arena, which retains freed memory.
_ARENAS: Final = 2
#: Blocks of at least this many bytes are mapped individually, and unmapped when they are freed. This is
#: also the maximum number of free bytes kept at the end of an arena. By default, glibc raises these limits to
#: up to 32 MiB and 64 MiB when large blocks are freed.
_THRESHOLD: Final = 128 * 1024


def limit_retained() -> None:
    """Limit the freed memory that malloc keeps. Call this before any thread starts.

    Do nothing if the C library has no mallopt().
    """
    libc = ctypes.CDLL(None)
    with suppress(AttributeError):
        libc.mallopt(_M_ARENA_MAX, _ARENAS)
        libc.mallopt(_M_MMAP_THRESHOLD, _THRESHOLD)
        libc.mallopt(_M_TRIM_THRESHOLD, _THRESHOLD)
