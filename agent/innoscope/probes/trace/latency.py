"""Reading histograms by powers of two."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from innoscope.common.samples import Histogram

_UNITS = ((1e9, "s"), (1e6, "ms"), (1e3, "µs"), (1.0, "ns"))


def range_of(buckets: Sequence[int]) -> Iterator[tuple[int, int]]:
    """``(index, count)`` from the first bucket that is not empty to the last one."""
    filled = [index for index, count in enumerate(buckets) if count]
    if filled:
        yield from ((index, buckets[index]) for index in range(filled[0], filled[-1] + 1))


def quantile(histogram: Histogram, part: float) -> float:
    """Nanoseconds within which that part of the calls ended: the upper end of a bucket."""
    left = part * histogram.count
    for index, count in enumerate(histogram.buckets):
        left -= count
        if left <= 0:
            return 2.0 ** (index + 1)
    return 2.0 ** len(histogram.buckets)


def duration(nanoseconds: float) -> str:
    """``512 ns``, ``1.02 µs``, ``65.5 µs``, ``131 ms``: three digits."""
    size, unit = next(((size, unit) for size, unit in _UNITS if nanoseconds >= size), (1.0, "ns"))
    value = nanoseconds / size
    digits = 0 if value >= 100 or unit == "ns" else 1 if value >= 10 else 2
    return f"{value:.{digits}f} {unit}"
