"""Identify the latches that threads are waiting for, from stacks and the patterns in ``latches.yaml``."""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING, Final, Literal

from msgspec import field

from innoscope import _native
from innoscope.common.data import catalog_path
from innoscope.common.schema import Entry, read_yaml

if TYPE_CHECKING:
    from pathlib import Path

#: Number of innermost functions that may belong to the lock's implementation.
_LOCK: Final = 9
#: Number of callers of the lock's implementation to compare with the patterns.
_CALLERS: Final = 2
#: Wait classes of threads that are waiting for a latch.
LATCH_WAITS: Final = frozenset({"mutex_wait", "spin"})
_OF_LOCKS: Final = re.compile(
    r"mutex|rw_lock|rwlock|futex|lll_lock|sync_array|os_event|cond_wait|ut_delay|sched_yield|srw_|ssux_|sux_lock|syscall"
    r"|^select$|^os_thread_sleep$"
)
_OF_RW_LOCKS: Final = re.compile(r"rw_lock|rwlock|ssux_|srw_lock|sux_lock")


class Latch(Entry, frozen=True):
    """One latch: its description, its kind (None: either), and patterns of functions that request it."""

    words: str = field(name="latch")
    callers: tuple[str, ...]
    kind: Literal["rw_lock", "mutex"] | None = None


class LatchesFile(Entry, frozen=True):
    """The contents of latches.yaml."""

    version: Literal[1]
    latches: tuple[Latch, ...]


@cache
def default_latches() -> tuple[Latch, ...]:
    """Return the latches of the installed catalog."""
    return load()


def load(path: Path | None = None) -> tuple[Latch, ...]:
    """Return the latches in the file, by default the installed catalog. Raise BadFile if it is invalid."""
    return read_yaml(path or catalog_path("latches.yaml"), LatchesFile).latches


@cache
def _callers() -> tuple[tuple[Latch, _native.Patterns], ...]:
    """Return each latch of the installed catalog with the compiled patterns of its callers."""
    return tuple((latch, _native.Patterns(latch.callers)) for latch in default_latches())


def named(functions: tuple[str, ...]) -> str:
    """Describe the latch that a thread is waiting for, and the function that requests it; "" if unknown."""
    lock = [place for place, name in enumerate(functions[:_LOCK]) if _OF_LOCKS.search(name)]
    outermost = lock[-1] if lock else -1
    callers = [_plain(name) for name in functions[outermost + 1 :] if "+0x" not in name][:_CALLERS]
    if not callers:
        return ""
    kind = "rw_lock" if any(map(_OF_RW_LOCKS.search, functions[: outermost + 1])) else "mutex"
    for latch, patterns in _callers():
        if latch.kind in (None, kind) and any(map(patterns.matches, callers)):
            return f"{latch.words}, in {callers[0]}"
    return f"{'an rw-lock' if kind == 'rw_lock' else 'a mutex'}, in {callers[0]}"


def _plain(name: str) -> str:
    """Return the function's name without suffixes that compilers append (``.clone.24``, ``.isra.0``)."""
    return name.partition(".")[0]
