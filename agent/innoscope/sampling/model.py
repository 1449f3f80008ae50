"""The plain records of a stack dump, the same for every renderer."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from innoscope._native import Frame

if TYPE_CHECKING:
    from innoscope.target.model import Query, Target

__all__ = ["Dump", "Frame", "Thread", "Trust"]


class Trust(StrEnum):
    """How far one thread's stack can be believed (docs/architecture.md, "Trust")."""

    EXACT = "exact"  # did not run while it was copied
    ON_CPU = "on_cpu"  # was running: a fresh sample of registers and stack taken by a perf event
    STALE = "stale"  # was running and no sample came: registers of its last kernel entry
    TORN = "torn"  # ran while it was copied, at every try
    TRUNCATED = "truncated"  # deeper than what could be copied
    INCOMPLETE = "incomplete"  # the outermost frame is not the start of a thread


@dataclass(frozen=True, slots=True)
class Thread:
    """One thread at one look. Frames are innermost first.

    ``syscall`` is the system call that it is in, ``argument`` that call's first argument.
    """

    tid: int
    ns_tid: int
    comm: str
    state: str
    trust: Trust
    wait: str
    frames: tuple[Frame, ...]
    syscall: int | None = None
    query: Query | None = None
    argument: int | None = None


@dataclass(frozen=True, slots=True)
class Dump:
    """All threads of one server at one look. ``taken_at`` is Unix time in seconds.

    ``shallow`` threads have a cut stack because the snapshot had copied as many bytes as it may.
    """

    target: Target
    method: str
    taken_at: float
    duration_ms: float
    threads: tuple[Thread, ...]
    notes: tuple[str, ...] = field(default=())
    shallow: int = 0

    @property
    def tally(self) -> dict[str, int]:
        """``{"threads": n, "exact": n, …}`` with every trust level present."""
        by_trust = Counter(thread.trust for thread in self.threads)
        return {"threads": len(self.threads)} | {trust.value: by_trust[trust] for trust in Trust}

    @property
    def waits(self) -> dict[str, int]:
        """Threads per wait class, most first."""
        return dict(Counter(thread.wait for thread in self.threads).most_common())
