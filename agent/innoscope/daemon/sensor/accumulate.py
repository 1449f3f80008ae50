"""Counters that go on when what counts them starts again from zero.

The sensor uses it over restarts of a server, the agent may over restarts of the sensor. Pure: no clock, no
input or output.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeAlias

from innoscope.common.samples import Histogram

if TYPE_CHECKING:
    from collections.abc import Collection, Hashable, Iterable

    from innoscope.common.samples import Sample, Value

_Series: TypeAlias = tuple[str, tuple[str, ...]]

#: The share of what was reached from which on a number that lasts counts as being back.
_BACK: Final = 0.9


@dataclass(slots=True)
class _Thing:
    """What is known of one thing that counts: sums of its earlier lives, and what this one said last.

    ``reached`` is the most that was told of what lasts.
    """

    epoch: Hashable
    before: dict[_Series, Value] = field(default_factory=dict)
    last: dict[_Series, Value] = field(default_factory=dict)
    reached: dict[_Series, float] = field(default_factory=dict)


class Accumulator:
    """Adds to each counter what it had before, so that it never goes backwards.

    ``counters`` are the metrics it is about; ``lasting`` are those of them that outlive a restart by
    themselves (log sequence numbers), to which nothing is added.
    """

    def __init__(self, counters: Collection[str], lasting: Collection[str] = ()) -> None:
        self._counters = frozenset(counters)
        self._lasting = frozenset(lasting)
        self._things: dict[Hashable, _Thing] = {}

    def update(self, thing: Hashable, epoch: Hashable, samples: Iterable[Sample]) -> tuple[Sample, ...]:
        """The samples, counters with their past. A new ``epoch`` says that the thing counts from zero again.

        Within an epoch a counter that falls stands still instead: who counted lost its memory.
        """
        known = self._things.setdefault(thing, _Thing(epoch))
        if known.epoch != epoch:
            self._restart(known, epoch)
        return tuple(
            self._go_on(known, sample) if sample.metric in self._counters else sample for sample in samples
        )

    def forget(self, thing: Hashable) -> None:
        """It will not come back."""
        self._things.pop(thing, None)

    def _restart(self, known: _Thing, epoch: Hashable) -> None:
        for series, last in known.last.items():
            known.before[series] = _sum(known.before.get(series), last)
        known.last = {}
        known.epoch = epoch

    def _go_on(self, known: _Thing, sample: Sample) -> Sample:
        series = (sample.metric, sample.labels)
        value, last, before = sample.value, known.last.get(series), known.before.get(series)
        if sample.metric in self._lasting and not isinstance(value, Histogram):
            return sample._replace(value=_outlive(known, series, value))
        if last is not None and _fell(value, last):
            before = known.before[series] = _standing(before, last, value)
        known.last[series] = value
        return sample if before is None else sample._replace(value=_sum(before, value))


def _outlive(known: _Thing, series: _Series, value: float) -> float:
    """As it is, once it is back where it was: a crash loses the end, and recovery begins near zero.

    In a new data folder it stays below, and what was reached before is added.
    """
    reached, before = known.reached.get(series, value), known.before.get(series, 0)
    if value >= _BACK * reached or isinstance(before, Histogram):
        before = 0
    elif value + before < reached:
        before = reached - value
    known.before[series] = before
    known.reached[series] = max(reached, value + before)
    return known.reached[series]


def added(raw: Iterable[Sample], told: Iterable[Sample]) -> tuple[Sample, ...]:
    """What ``update`` added to each number, where it added something."""
    return tuple(
        now._replace(value=now.value - one.value)
        for one, now in zip(raw, told, strict=True)
        if now != one and not isinstance(now.value, Histogram) and not isinstance(one.value, Histogram)
    )


def _fell(value: Value, last: Value) -> bool:
    if isinstance(value, Histogram) and isinstance(last, Histogram):
        return value.count < last.count
    if isinstance(value, Histogram) or isinstance(last, Histogram):
        return False  # it changed its nature: there is nothing to compare
    return value < last


def _standing(before: Value | None, last: Value, value: Value) -> Value:
    """What to add from now on: a number stays where it was, a histogram begins again above its past."""
    if isinstance(last, Histogram) or isinstance(value, Histogram):
        return _sum(before, last)
    return _sum(before, last - value)


def _sum(before: Value | None, value: Value) -> Value:
    """Both added up; what cannot be added (a number and a histogram) leaves the new one."""
    if isinstance(before, Histogram) and isinstance(value, Histogram):
        return before.plus(value)
    if before is None or isinstance(before, Histogram) or isinstance(value, Histogram):
        return value
    return before + value
