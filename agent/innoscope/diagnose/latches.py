"""Which mutex or rw-lock threads want, told from their stacks: the names are data, ``latches.yaml``."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from fnmatch import translate
from functools import cache
from typing import TYPE_CHECKING, Final

from innoscope.common.data import catalog_path, read_yaml, reading

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from innoscope.diagnose.evidence import Evidence

#: So many of the innermost functions may belong to the lock itself, and so many after them are its callers.
_LOCK: Final = 9
_CALLERS: Final = 2
#: Latches that are told of, and which share of the waiting threads each must have.
_TOLD: Final = 3
_SHARE: Final = 0.1
_OF_LOCKS: Final = re.compile(
    r"mutex|rw_lock|rwlock|futex|lll_lock|sync_array|os_event|cond_wait|ut_delay|sched_yield|srw_|ssux_|sux_lock|syscall"
    r"|^select$|^os_thread_sleep$"
)
_OF_RW_LOCKS: Final = re.compile(r"rw_lock|rwlock|ssux_|srw_lock|sux_lock")


@dataclass(frozen=True, slots=True)
class Latch:
    """One entry: its name in words, ``rw_lock``, ``mutex`` or None for either, and who asks for it."""

    words: str
    kind: str | None
    callers: re.Pattern[str]


@cache
def default_latches() -> tuple[Latch, ...]:
    """Those of the installed catalog."""
    return load()


def load(path: Path | None = None) -> tuple[Latch, ...]:
    """Read the file. Raises BadFile."""
    path = path or catalog_path("latches.yaml")
    data = read_yaml(path)
    with reading(path):
        return tuple(
            Latch(
                body["latch"],
                body.get("kind"),
                re.compile("|".join(translate(name) for name in body["callers"])),
            )
            for body in data["latches"]
        )


def wanted(evidence: Evidence, waits: Iterable[str]) -> list[str]:
    """Lines such as ``78 % of them want a page (its block's lock), in buf_page_get_gen``."""
    classes = frozenset(waits)
    found: Counter[str] = Counter()
    for seen in evidence.seen:
        if seen.wait in classes:
            found[named(seen.functions)] += seen.count
    total = sum(found.values())
    return [
        f"{100 * count / total:.0f} % of them want {words}"
        for words, count in found.most_common(_TOLD)
        if words and count >= _SHARE * total
    ]


def named(functions: tuple[str, ...]) -> str:
    """The latch that a thread with this stack wants, and where; nothing where no function tells."""
    lock = [place for place, name in enumerate(functions[:_LOCK]) if _OF_LOCKS.search(name)]
    outermost = lock[-1] if lock else -1
    callers = [_plain(name) for name in functions[outermost + 1 :] if "+0x" not in name][:_CALLERS]
    if not callers:
        return ""
    kind = "rw_lock" if any(map(_OF_RW_LOCKS.search, functions[: outermost + 1])) else "mutex"
    for latch in default_latches():
        if latch.kind in (None, kind) and any(map(latch.callers.match, callers)):
            return f"{latch.words}, in {callers[0]}"
    return f"{'an rw-lock' if kind == 'rw_lock' else 'a mutex'}, in {callers[0]}"


def _plain(name: str) -> str:
    """Without what a compiler appends (``.clone.24``, ``.isra.0``)."""
    return name.partition(".")[0]
