"""Samples: what every collector returns, what travels from the sensor to the agent, what is exported."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterable


@dataclass(frozen=True, slots=True)
class Histogram:
    """Counts by power of two of nanoseconds: ``buckets[i]`` observations lie in [2**i, 2**(i+1)).

    Not cumulative; ``total_ns`` is the sum of all observations.
    """

    buckets: tuple[int, ...]
    total_ns: int

    @property
    def count(self) -> int:
        """How many observations there are."""
        return sum(self.buckets)

    def plus(self, other: Histogram) -> Histogram:
        """Both added up."""
        longer, shorter = sorted((self.buckets, other.buckets), key=len, reverse=True)
        padded = shorter + (0,) * (len(longer) - len(shorter))
        return Histogram(
            tuple(a + b for a, b in zip(longer, padded, strict=True)), self.total_ns + other.total_ns
        )


Value: TypeAlias = float | int | Histogram


class Sample(NamedTuple):
    """The value of one series now. A tuple, because a scrape makes hundreds of them for each server.

    ``metric`` is the name in ``probes/catalog/metrics.yaml``, ``labels`` the values of its labels in their
    declared order, without ``server``. Counters are cumulative since the server started, or since we did.
    """

    metric: str
    value: Value
    labels: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Outcome:
    """One run of one collector. ``reason`` says why it failed, for a person; it may have samples even so.

    ``past`` is what earlier processes of the server had counted, where samples have it in them.
    """

    collector: str
    success: bool
    seconds: float
    samples: tuple[Sample, ...]
    reason: str | None = None
    past: tuple[Sample, ...] = ()


def by_series(samples: Iterable[Sample]) -> dict[tuple[str, tuple[str, ...]], Value]:
    """``{(metric, labels): value}``."""
    return {(sample.metric, sample.labels): sample.value for sample in samples}
