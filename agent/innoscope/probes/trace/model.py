"""Define the options, the function, the cost, the result and the errors of a trace."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from innoscope.common.errors import ExitCode, InnoscopeError
from innoscope.probes.governor import DEFAULT_BUDGET

if TYPE_CHECKING:
    from innoscope._native import Function
    from innoscope.common.samples import Histogram
    from innoscope.probes.trace.server_pace import Loss
    from innoscope.sampling.fold import StackReport

#: Default duration of a trace, in seconds.
SECONDS: Final = 10.0
#: Default duration with ``--force``, in seconds.
FORCED_SECONDS: Final = 5.0
#: Maximum duration with ``--force``, in seconds.
MAX_FORCED_SECONDS: Final = 30.0
#: Maximum number of stacks per second: few enough to be read in time, but enough for shares that are accurate
#: to 3 percentage points after 4 s.
MAX_STACKS_PER_S: Final = 250.0
#: Minimum number of stacks per second, even if they exceed their share of the budget.
MIN_STACKS_PER_S: Final = 10.0
#: The share of the budget that stacks may use.
_STACKS_SHARE: Final = 0.5


@dataclass(frozen=True, slots=True)
class Cost:
    """CPU seconds that a busy server loses per call (``call_s``), plus those per copied stack (``stack_s``).

    ``weight`` is the factor by which a hit's cost counts against the budget. ``cpus`` is the number of CPUs
    that the server may use.
    """

    call_s: float
    stack_s: float
    cpus: float
    weight: int = 1
    return_s: float = 0.0  # the part of ``call_s`` that a return probe causes

    @property
    def without_return(self) -> Cost:
        """Return the cost of calls without a return probe."""
        return replace(self, call_s=self.call_s - self.return_s, return_s=0.0)

    def share(self, rate: float, stacks: float = 0.0) -> float:
        """Return the weighted share of the server's CPUs that ``rate`` calls/s and ``stacks``/s cost."""
        return (rate * self.call_s * self.weight + stacks * self.stack_s) / self.cpus

    def spent(self, hits: float, stacks: float, seconds: float) -> float:
        """Return the CPU time that the trace uses in ``seconds`` seconds, capped at the server's CPUs."""
        return min(hits * self.call_s + stacks * self.stack_s, seconds * self.cpus)

    def stacks_per_second(self, budget: float) -> float:
        """Return the number of stacks per second that the budget allows."""
        if not self.stack_s:
            return MAX_STACKS_PER_S
        affordable = _STACKS_SHARE * budget * self.cpus / self.stack_s
        return min(MAX_STACKS_PER_S, max(MIN_STACKS_PER_S, affordable))


class TooHot(InnoscopeError):
    """The function is called too often for the budget. It was probed only during the short trial."""

    exit_code = ExitCode.REFUSED


class NotTraceable(InnoscopeError):
    """No function of that name can be probed on this server; ``what`` is the reason."""

    exit_code = ExitCode.NOT_SUPPORTED


class Ambiguous(InnoscopeError):
    """The name matches several functions; the remedy lists them."""

    exit_code = ExitCode.USAGE


@dataclass(frozen=True, slots=True)
class TraceOptions:
    """The measurements to make, and the budget.

    ``argument`` is the number of an argument, from 0; ``bits`` is its width. ``budget`` is a share of the
    server's CPUs.
    """

    seconds: float = SECONDS
    callers: bool = False
    argument: int | None = None
    bits: int = 64
    latency: bool = True
    force: bool = False
    budget: float = DEFAULT_BUDGET


@dataclass(frozen=True, slots=True)
class TracedFunction:
    """One function of one mapped file with all its copies, and its properties in the catalog."""

    name: str  # as shown to the user
    path: str  # path at which the mapped file can be opened
    places: tuple[Function, ...]
    timed: str | None = None  # why a return probe is safe (from ``safe`` in the catalog)
    limit: int | None = None  # maximum hits/s, regardless of cost
    weight: int = 1  # factor by which a hit's cost counts against the budget
    why_hot: str | None = None
    instead: str | None = None  # the alternative if the function is too hot
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Trial:
    """The trial at the start of a trace: the ``hits`` in ``seconds``. ``began`` is a monotonic time."""

    hits: int
    seconds: float
    began: float

    @property
    def rate(self) -> float:
        """Return the hits per second. The probe slows the function down, so this is a lower bound."""
        return self.hits / self.seconds if self.seconds > 0 else 0.0


@dataclass(frozen=True, slots=True)
class Values:
    """The values of one argument: ``counts`` of individual values, and ``octaves`` by power of two.

    ``octaves[0]`` counts zeros, ``octaves[i]`` counts values in [2**(i-1), 2**i). ``others`` counts the calls
    whose value did not fit into ``counts``.
    """

    argument: int
    counts: dict[int, int]
    others: int
    octaves: tuple[int, ...]


@dataclass(slots=True)
class TraceResult:
    """The result of a trace. ``hits``, unlike ``calls``, includes calls during attaching and detaching."""

    chosen: TracedFunction
    trial: Trial
    cost: Cost
    seconds: float = 0.0
    calls: int = 0
    hits: int = 0
    latency: Histogram | None = None
    values: Values | None = None
    report: StackReport | None = None  # the callers' stacks
    stacks_taken: int = 0
    stacks_held_back: int = 0
    stacks_lost: int = 0
    loss: Loss | None = None
    ended: str | None = None  # why the trace ended early
    error: InnoscopeError | None = None  # set if the server exited; reported after the result
    notes: list[str] = field(default_factory=list)

    @property
    def spent(self) -> float:
        """Return the CPU seconds that the trace cost the server."""
        return self.cost.spent(self.hits, self.stacks_taken, self.seconds)

    @property
    def rate(self) -> float:
        """Return the calls per second."""
        return self.calls / self.seconds if self.seconds > 0 else 0.0
