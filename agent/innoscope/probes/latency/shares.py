"""Break down the latency of statements, its variance and its p99 by wait class (docs/latency.md).

The decomposition of the variance follows the idea of VProfiler (J. Huang, B. Mozafari, T. F. Wenisch:
Statistical Analysis of Latency Through Semantic Profiling, EuroSys 2017, doi:10.1145/3064176.3064179): the
covariances of the parts with the total add up to the variance of the total.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

#: The quantile that is explained.
_TAIL: Final = 0.99


class BlockedStack(NamedTuple):
    """A wait class, and the functions of a stack, innermost first."""

    wait: str
    functions: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class StatementLatency:
    """One sampled statement. The times by wait class, in nanoseconds, add up to its latency ``wall_ns``.

    ``stacks`` contains the blocked time by stack.
    """

    digest: str
    wall_ns: int
    times: Mapping[str, int]
    stacks: Mapping[BlockedStack, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ClassShare:
    """The shares of one wait class. Each kind of share adds up to 1 over all classes.

    ``variance`` and ``excess`` are None if all statements took equally long.
    """

    wait: str
    mean: float
    variance: float | None
    excess: float | None


@dataclass(frozen=True, slots=True)
class Breakdown:
    """The latency of a set of statements in nanoseconds, and the shares of its wait classes.

    ``tail`` is the number of statements that took p99 or longer, and ``tail_mean`` their mean latency.
    ``shares`` has one element per wait class, sorted by the share of the excess, then by the share of the
    mean, largest first.
    """

    count: int
    mean: float
    p50: int
    p95: int
    p99: int
    maximum: int
    tail: int
    tail_mean: float
    shares: tuple[ClassShare, ...]

    @property
    def excess(self) -> float:
        """Return the mean latency of statements of p99 or longer minus the mean of all, in nanoseconds."""
        return self.tail_mean - self.mean


@dataclass(frozen=True, slots=True)
class DigestBreakdown:
    """The statements of one digest. ``slowest`` of them took at least the p99 of all statements."""

    digest: str
    slowest: int
    breakdown: Breakdown


def quantile(ordered: Sequence[int], fraction: float) -> int:
    """Return the smallest value that at least ``fraction`` of the values do not exceed (nearest rank)."""
    return ordered[max(0, math.ceil(fraction * len(ordered)) - 1)]


def analyze(statements: Sequence[StatementLatency]) -> Breakdown:
    """Return the breakdown of at least one statement."""
    ordered = sorted(statement.wall_ns for statement in statements)
    p99 = quantile(ordered, _TAIL)
    tail = _tail(statements, p99)
    mean = math.fsum(ordered) / len(ordered)
    tail_mean = math.fsum(statement.wall_ns for statement in tail) / len(tail)
    return Breakdown(
        count=len(ordered),
        mean=mean,
        p50=quantile(ordered, 0.5),
        p95=quantile(ordered, 0.95),
        p99=p99,
        maximum=ordered[-1],
        tail=len(tail),
        tail_mean=tail_mean,
        shares=tuple(_shares(statements, tail, mean, tail_mean - mean)),
    )


def _tail(statements: Sequence[StatementLatency], p99: int) -> list[StatementLatency]:
    return [statement for statement in statements if statement.wall_ns >= p99]


def tail_stacks(statements: Sequence[StatementLatency]) -> list[tuple[BlockedStack, float]]:
    """Return the stacks of the statements that took p99 or longer, those with the most blocked time first.

    The times are nanoseconds per such statement.
    """
    if not statements:
        return []
    tail = _tail(statements, quantile(sorted(statement.wall_ns for statement in statements), _TAIL))
    times: Counter[BlockedStack] = Counter()
    for statement in tail:
        times.update(statement.stacks)
    return [(stack, spent / len(tail)) for stack, spent in times.most_common()]


def _shares(
    statements: Sequence[StatementLatency], tail: Sequence[StatementLatency], mean: float, excess: float
) -> Iterable[ClassShare]:
    deviations = [statement.wall_ns - mean for statement in statements]
    variance = math.fsum(deviation * deviation for deviation in deviations)
    shares = []
    for wait in sorted({wait for statement in statements for wait in statement.times}):
        times = [statement.times.get(wait, 0) for statement in statements]
        average = math.fsum(times) / len(times)
        # The mean of the deviations is 0, so the mean of `times` need not be subtracted.
        covariance = math.fsum(time * deviation for time, deviation in zip(times, deviations, strict=True))
        in_tail = math.fsum(statement.times.get(wait, 0) for statement in tail) / len(tail)
        shares.append(
            ClassShare(
                wait,
                mean=_ratio(average, mean) or 0.0,
                variance=_ratio(covariance, variance),
                excess=_ratio(in_tail - average, excess),
            )
        )
    return sorted(shares, key=lambda share: (share.excess or 0.0, share.mean), reverse=True)


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole > 0 else None


def by_digest(statements: Sequence[StatementLatency]) -> list[DigestBreakdown]:
    """Return the breakdown of each digest.

    Digests are sorted by the time of their statements that took the p99 of all statements or longer, then by
    their own p99, largest first.
    """
    groups: defaultdict[str, list[StatementLatency]] = defaultdict(list)
    for statement in statements:
        groups[statement.digest].append(statement)
    p99 = quantile(sorted(statement.wall_ns for statement in statements), _TAIL) if statements else 0
    ranked = []
    for digest, group in groups.items():
        slowest = [statement.wall_ns for statement in group if statement.wall_ns >= p99]
        ranked.append((sum(slowest), DigestBreakdown(digest, len(slowest), analyze(group))))
    ranked.sort(key=lambda one: (one[0], one[1].breakdown.p99), reverse=True)
    return [breakdown for _, breakdown in ranked]
