"""Keep counters monotonic when their source restarts and counts from zero again.

The sensor uses this for restarts of a server. The code is pure: it reads no clock and performs no I/O.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeAlias

from innoscope.common.samples import Histogram

if TYPE_CHECKING:
    from collections.abc import Collection, Hashable, Iterable

    from innoscope.common.samples import Sample, Value

_Series: TypeAlias = tuple[str, tuple[str, ...]]

#: A persistent counter has recovered from a restart when it reaches this share of its previous maximum.
_RECOVERED_SHARE: Final = 0.9


@dataclass(slots=True)
class _Source:
    """State of one source: the offset added to each counter, and the counter's last value in this epoch.

    ``reached`` holds each persistent counter's highest reported value; ``last`` has no persistent counters.
    """

    epoch: Hashable
    before: dict[_Series, Value] = field(default_factory=dict)
    last: dict[_Series, Value] = field(default_factory=dict)
    reached: dict[_Series, float] = field(default_factory=dict)


class Accumulator:
    """Adds the values of earlier epochs to each counter, so that the counter never decreases.

    ``counters`` contains the names of all counters. ``persistent`` contains the names of counters that the
    source itself continues after a restart (log sequence numbers), so earlier epochs are not added to them.
    """

    def __init__(self, counters: Collection[str], persistent: Collection[str] = ()) -> None:
        self._counters = frozenset(counters)
        self._persistent = frozenset(persistent)
        self._sources: dict[Hashable, _Source] = {}

    def update(self, source: Hashable, epoch: Hashable, samples: Iterable[Sample]) -> tuple[Sample, ...]:
        """Return the samples with the counts of earlier epochs added.

        A new ``epoch`` means that the source counts from zero again. If a counter decreases within an epoch,
        it was reset at the source; the returned value does not decrease.
        """
        known = self._sources.setdefault(source, _Source(epoch))
        if known.epoch != epoch:
            self._restart(known, epoch)
        # Built from a list, because CPython resizes a tuple that is built from a generator, and retains up to
        # 2,000 freed tuples of each small length (Objects/tupleobject.c in 3.11).
        return tuple(
            [
                self._continued(known, sample) if sample.metric in self._counters else sample
                for sample in samples
            ]
        )

    def _restart(self, known: _Source, epoch: Hashable) -> None:
        for series, last in known.last.items():
            known.before[series] = _sum(known.before.get(series), last)
        known.last = {}
        known.epoch = epoch

    def _continued(self, known: _Source, sample: Sample) -> Sample:
        series = (sample.metric, sample.labels)
        value, last, before = sample.value, known.last.get(series), known.before.get(series)
        if sample.metric in self._persistent and not isinstance(value, Histogram):
            return sample._replace(value=_continue_persistent(known, series, value))
        if last is not None and _decreased(value, last):
            before = known.before[series] = _offset_after_reset(before, last, value)
        known.last[series] = value
        return sample if before is None else sample._replace(value=_sum(before, value))


def _continue_persistent(known: _Source, series: _Series, value: float) -> float:
    """Return a persistent counter's value with an offset that prevents it from decreasing.

    A crash loses the end of the log, and during recovery the value starts near zero. The offset is removed
    when the value has recovered. After a restart on a new data directory, the value may never recover.
    """
    reached, before = known.reached.get(series, value), known.before.get(series, 0)
    if value >= _RECOVERED_SHARE * reached or isinstance(before, Histogram):
        before = 0
    elif value + before < reached:
        before = reached - value
    known.before[series] = before
    known.reached[series] = max(reached, value + before)
    return known.reached[series]


def added(raw: Iterable[Sample], updated: Iterable[Sample]) -> tuple[Sample, ...]:
    """Return the amount that ``update`` added to each sample. Omit unchanged samples and histograms."""
    return tuple(
        [
            now._replace(value=now.value - one.value)
            for one, now in zip(raw, updated, strict=True)
            if now != one and not isinstance(now.value, Histogram) and not isinstance(one.value, Histogram)
        ]
    )


def _decreased(value: Value, last: Value) -> bool:
    if isinstance(value, Histogram) and isinstance(last, Histogram):
        return value.count < last.count
    if isinstance(value, Histogram) or isinstance(last, Histogram):
        return False  # a number became a histogram or vice versa: not comparable
    return value < last


def _offset_after_reset(before: Value | None, last: Value, value: Value) -> Value:
    """Return the offset after a reset.

    Numbers continue from the last reported value; for histograms, the last value is added to the offset.
    """
    if isinstance(last, Histogram) or isinstance(value, Histogram):
        return _sum(before, last)
    return _sum(before, last - value)


def _sum(before: Value | None, value: Value) -> Value:
    """Return ``before`` plus ``value``, or ``value`` alone if ``before`` is None or the types differ."""
    if isinstance(before, Histogram) and isinstance(value, Histogram):
        return before.plus(value)
    if before is None or isinstance(before, Histogram) or isinstance(value, Histogram):
        return value
    return before + value
