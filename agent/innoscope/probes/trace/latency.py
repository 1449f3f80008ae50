"""Compute non-empty ranges and quantiles of power-of-two histograms, and format durations."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from innoscope.common.samples import Histogram

_UNITS = ((1e9, "s"), (1e6, "ms"), (1e3, "µs"), (1.0, "ns"))


def filled_range(buckets: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield ``(index, count)`` of the buckets from the first to the last non-empty one."""
    filled = [index for index, count in enumerate(buckets) if count]
    if filled:
        yield from ((index, buckets[index]) for index in range(filled[0], filled[-1] + 1))


def quantile(histogram: Histogram, fraction: float) -> float:
    """Return the upper bound in ns of the bucket that contains the quantile."""
    remaining = fraction * histogram.count
    for index, count in enumerate(histogram.buckets):
        remaining -= count
        if remaining <= 0:
            return 2.0 ** (index + 1)
    return 2.0 ** len(histogram.buckets)


def duration(nanoseconds: float) -> str:
    """Format a duration with up to three significant digits: ``5 ns``, ``1.02 µs`` or ``131 ms``."""
    size, unit = next(((size, unit) for size, unit in _UNITS if nanoseconds >= size), (1.0, "ns"))
    value = nanoseconds / size
    digits = 0 if value >= 100 or unit == "ns" else 1 if value >= 10 else 2
    return f"{value:.{digits}f} {unit}"
