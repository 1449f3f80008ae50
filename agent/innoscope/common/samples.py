"""Define the samples that collectors return, the sensor sends to the agent, and the agent exports."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterable


@dataclass(frozen=True, slots=True)
class Histogram:
    """Counts of observations in nanoseconds: ``buckets[i]`` counts observations in [2**i, 2**(i+1)).

    The first bucket also counts zeros, and the last one all longer observations. Buckets are not cumulative.
    ``total_ns`` is the sum of all observations.
    """

    buckets: tuple[int, ...]
    total_ns: int

    @property
    def count(self) -> int:
        """Return the number of observations."""
        return sum(self.buckets)

    def plus(self, other: Histogram) -> Histogram:
        """Return the sum of this histogram and ``other``."""
        longer, shorter = sorted((self.buckets, other.buckets), key=len, reverse=True)
        padded = shorter + (0,) * (len(longer) - len(shorter))
        return Histogram(
            tuple([a + b for a, b in zip(longer, padded, strict=True)]), self.total_ns + other.total_ns
        )


Value: TypeAlias = float | int | Histogram


class Sample(NamedTuple):
    """The current value of one series. A tuple is used for speed: a scrape creates hundreds per server.

    ``metric`` is the name in ``probes/catalog/metrics.yaml``. ``labels`` contains the label values in
    declared order, without ``server``. Counters are cumulative since the server or this process started.
    """

    metric: str
    value: Value
    labels: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of one run of one collector.

    ``reason`` explains a failure to the user; a failed run may still have samples. ``past`` contains the
    counts of the server's earlier processes; ``samples`` includes them.
    """

    collector: str
    success: bool
    seconds: float
    samples: tuple[Sample, ...]
    reason: str | None = None
    past: tuple[Sample, ...] = ()


def by_series(samples: Iterable[Sample]) -> dict[tuple[str, tuple[str, ...]], Value]:
    """Return the samples as a mapping ``{(metric, labels): value}``."""
    return {(sample.metric, sample.labels): sample.value for sample in samples}
