"""Define the records of a snapshot, which all renderers use."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from innoscope._native import Frame

if TYPE_CHECKING:
    from innoscope.target.model import Query, Target

__all__ = ["Blocked", "Frame", "Snapshot", "Thread", "Trust"]


class Trust(StrEnum):
    """The reliability of one thread's stack (docs/architecture.md, "Trust")."""

    EXACT = "exact"  # the thread did not run while its stack was copied
    INFERRED = "inferred"  # like exact, but a register was unknown and was inferred from stack or code
    ON_CPU = "on_cpu"  # the thread was running; a perf event sampled its registers and stack
    STALE = "stale"  # the thread ran but was not sampled; registers are from its last kernel entry
    TORN = "torn"  # the thread ran during each attempt to copy its stack
    TRUNCATED = "truncated"  # the stack is larger than the part that was copied
    INCOMPLETE = "incomplete"  # the outermost frame is not the start of a thread


#: Trust levels of threads that did not run during the copy. Their system call and its argument are valid.
AT_REST: Final = frozenset({Trust.EXACT, Trust.INFERRED})


@dataclass(frozen=True, slots=True)
class Blocked:
    """The connection that blocks a waiting thread, and the name of the lock; None if unknown.

    ``thread`` is the id of the blocker's thread in the server's pid namespace.
    """

    connection: int | None
    object: str | None
    thread: int | None = None


@dataclass(frozen=True, slots=True)
class Thread:
    """One thread in one snapshot. Frames are innermost first.

    ``syscall`` is the number of the thread's current system call, ``argument`` the call's first argument.
    Only the sensor sets ``blocked``, which it reads from the server's memory.
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
    blocked: Blocked | None = None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One snapshot of all threads of a server. ``taken_at`` is Unix time in seconds.

    ``shallow`` is the number of threads whose stack was truncated because of the snapshot's byte limit.
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
        """Return ``{"threads": n, "exact": n, …}``, with every trust level present."""
        by_trust = Counter(thread.trust for thread in self.threads)
        return {"threads": len(self.threads)} | {trust.value: by_trust[trust] for trust in Trust}

    @property
    def waits(self) -> dict[str, int]:
        """Return the number of threads per wait class, largest first."""
        return dict(Counter(thread.wait for thread in self.threads).most_common())
