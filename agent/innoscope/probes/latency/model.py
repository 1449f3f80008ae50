"""Define the options and the result of a latency profile."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Final

from innoscope.probes.governor import DEFAULT_BUDGET
from innoscope.probes.latency.shares import analyze, by_digest, tail_stacks

if TYPE_CHECKING:
    from collections.abc import Mapping

    from innoscope.common.errors import InnoscopeError
    from innoscope.probes.latency.shares import BlockedStack, Breakdown, DigestBreakdown, StatementLatency
    from innoscope.probes.trace.model import Cost

#: Default duration, in seconds.
SECONDS: Final = 10.0
#: The wait class of blocked time for which no stack was captured.
NO_STACK: Final = "stack_not_taken"
#: The digest of a query whose text is unknown.
UNKNOWN: Final = "?"


@dataclass(frozen=True, slots=True)
class LatencyOptions:
    """The duration in seconds, and the budget as a share of the server's CPUs.

    ``commands`` maps command numbers to names. ``members`` are the offsets in a THD of the connection's id,
    and of the address and the length of its statement's text. Without them, prepared statements have no
    digests.
    """

    seconds: float = SECONDS
    budget: float = DEFAULT_BUDGET
    commands: Mapping[int, str] = field(default_factory=dict)
    members: tuple[int, int, int] | None = None


@dataclass
class LatencyResult:
    """The sampled statements: one in ``every`` of ``total``, at random. ``began_at`` is Unix time.

    ``texts`` contains the text of each digest. ``hits`` counts the commands that began in the ``probed_s``
    seconds while the probes were attached, and ``stacks`` the stacks that were copied.
    """

    cost: Cost
    began_at: float = 0.0
    seconds: float = 0.0
    every: int = 1
    total: int = 0
    statements: list[StatementLatency] = field(default_factory=list)
    texts: dict[str, str] = field(default_factory=dict)
    probed_s: float = 0.0
    hits: int = 0
    stacks: int = 0
    unfinished: int = 0
    lost: int = 0
    ended: str | None = None  # why the profile ended early
    error: InnoscopeError | None = None  # set if the server exited; reported after the result
    notes: list[str] = field(default_factory=list)

    @property
    def spent(self) -> float:
        """Return the CPU seconds that the profile cost the server, excluding its cost at context switches."""
        return self.cost.spent(self.hits, self.stacks, self.probed_s)

    @cached_property
    def overall(self) -> Breakdown | None:
        """Return the breakdown of all statements, or None if there are none."""
        return analyze(self.statements) if self.statements else None

    @cached_property
    def digests(self) -> list[DigestBreakdown]:
        """Return the breakdown of each digest, those with the slowest statements first."""
        return by_digest(self.statements)

    @cached_property
    def slow_stacks(self) -> list[tuple[BlockedStack, float]]:
        """Return the stacks of statements that took p99 or longer, those with the most blocked time first.

        The times are nanoseconds per such statement.
        """
        return tail_stacks(self.statements)
