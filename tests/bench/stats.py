"""Compute quantiles, and medians with their confidence intervals."""

from __future__ import annotations

import random
from statistics import median
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from workloads import Gaps

_RESAMPLES = 2000
_SHARE = 0.95


def quantile(values: Sequence[float], share: float) -> float:
    """Return the quantile at ``share`` (0 to 1), interpolated between values."""
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def histogram_quantile(histogram: Mapping[int, int], share: float) -> float:
    """Return the interpolated quantile of a latency probe's histogram, which has eight buckets per octave."""
    left = share * sum(histogram.values())
    for edge, count in sorted(histogram.items()):
        if left <= count:
            width = 1 << max(0, edge.bit_length() - 4)
            return edge + width * left / count
        left -= count
    return 0.0


def gap_times(gaps: Gaps) -> dict[str, float]:
    """Return the maximum, p99 and p50 of the times between replies, in ms, and the number of replies."""
    return {
        "longest_ms": gaps.longest_us / 1000,
        "p99_ms": histogram_quantile(gaps.histogram, 0.99) / 1000,
        "p50_ms": histogram_quantile(gaps.histogram, 0.5) / 1000,
        "answers": gaps.count,
    }


def median_interval(values: Sequence[float]) -> tuple[float, float]:
    """Return the 95 % bootstrap interval of the median."""
    generator = random.Random(1)  # noqa: S311
    found = [median(generator.choices(values, k=len(values))) for _ in range(_RESAMPLES)]
    return quantile(found, (1 - _SHARE) / 2), quantile(found, (1 + _SHARE) / 2)


def excess_interval(values: Sequence[float], control: Sequence[float]) -> tuple[float, float]:
    """Return the 95 % bootstrap interval of the difference between the two medians."""
    generator = random.Random(2)  # noqa: S311
    found = [
        median(generator.choices(values, k=len(values))) - median(generator.choices(control, k=len(control)))
        for _ in range(_RESAMPLES)
    ]
    return quantile(found, (1 - _SHARE) / 2), quantile(found, (1 + _SHARE) / 2)
