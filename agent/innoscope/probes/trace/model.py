"""What is asked of a trace, what was seen, and how it is refused."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from innoscope.common.errors import InnoscopeError
from innoscope.probes.governor import DEFAULT_BUDGET

if TYPE_CHECKING:
    from innoscope._native import Function
    from innoscope.common.samples import Histogram
    from innoscope.probes.trace.costs import Cost
    from innoscope.probes.trace.server_pace import Loss
    from innoscope.sampling.fold import Report

#: Seconds that a trace takes if nothing else is said, and the most that may be asked for.
SECONDS: Final = 10.0
MOST_SECONDS: Final = 600.0
#: The same with ``--force``.
FORCED_SECONDS: Final = 5.0
MOST_FORCED_SECONDS: Final = 30.0
#: Arguments that are passed in registers (System V ABI for x86-64; aarch64 has two more).
MOST_ARGUMENTS: Final = 6


class TooHot(InnoscopeError):
    """The function is called too often for the budget; it was probed for some milliseconds only."""

    exit_code = 14


class NotHere(InnoscopeError):
    """This server has no such function that could be probed; ``what`` says why."""

    exit_code = 15


class Ambiguous(InnoscopeError):
    """The name stands for several functions; the remedy lists them."""

    exit_code = 2


@dataclass(frozen=True, slots=True)
class Wanted:
    """What to find out, and at which price.

    ``argument`` counts from 0; ``bits`` is its width. ``budget`` is a share of the server's CPUs.
    """

    seconds: float = SECONDS
    callers: bool = False
    argument: int | None = None
    bits: int = 64
    latency: bool = True
    force: bool = False
    budget: float = DEFAULT_BUDGET


@dataclass(frozen=True, slots=True)
class Chosen:
    """One function of one mapped file, all copies of it, and what the catalog knows of it."""

    name: str  # as a person would write it
    path: str  # opens the mapped file
    places: tuple[Function, ...]
    timed: str | None = None  # why a return probe may go there: a reason of the catalog's ``safe``
    limit: int | None = None  # most hits a second, whatever they cost
    weight: int = 1  # a hit counts so many times in the budget
    why_hot: str | None = None
    instead: str | None = None  # the way around where it is too hot
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Trial:
    """The first moments of a trace: so many hits in ``seconds``; ``began`` is of time.monotonic()."""

    hits: int
    seconds: float
    began: float

    @property
    def rate(self) -> float:
        """Hits a second; a hot function is slowed by the very probe, so it is at least this."""
        return self.hits / self.seconds if self.seconds > 0 else 0.0


@dataclass(frozen=True, slots=True)
class Values:
    """The values of one argument: the most frequent ones, and all by powers of two.

    ``octaves[0]`` are zeros, ``octaves[i]`` lie in [2**(i-1), 2**i). ``others`` are calls whose value is not
    among ``counts``, which is bounded.
    """

    argument: int
    counts: dict[int, int]
    others: int
    octaves: tuple[int, ...]


@dataclass(slots=True)
class Seen:
    """What was counted in ``seconds``. ``hits`` has what came while probes were put on and taken off, too."""

    chosen: Chosen
    trial: Trial
    cost: Cost
    seconds: float = 0.0
    calls: int = 0
    hits: int = 0
    latency: Histogram | None = None
    values: Values | None = None
    report: Report | None = None  # the callers' stacks
    stacks_taken: int = 0
    stacks_held_back: int = 0
    stacks_lost: int = 0
    loss: Loss | None = None
    ended: str | None = None  # why it ended before its time
    error: InnoscopeError | None = None  # of the server that ended: told after what was seen
    notes: list[str] = field(default_factory=list)

    @property
    def spent(self) -> float:
        """Seconds of CPU that it cost the server."""
        return self.cost.spent(self.hits, self.stacks_taken, self.seconds)

    @property
    def rate(self) -> float:
        """Calls a second."""
        return self.calls / self.seconds if self.seconds > 0 else 0.0
