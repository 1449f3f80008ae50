"""Where memory and SQL both tell a number: the difference, so that a wrong offset is seen."""

from __future__ import annotations

from typing import TYPE_CHECKING

from innoscope.metrics.model import Histogram, Sample, by_series

if TYPE_CHECKING:
    from collections.abc import Container, Iterable


def differences(memory: Iterable[Sample], sql: Iterable[Sample], metrics: Container[str]) -> list[Sample]:
    """``memory_sql_difference`` for each series of ``metrics`` that both tell, read one after the other."""
    told = by_series(memory)
    found = []
    for sample in sql:
        other = told.get((sample.metric, sample.labels))
        if sample.metric not in metrics or isinstance(sample.value, Histogram):
            continue
        if other is None or isinstance(other, Histogram):
            continue
        name = "_".join((sample.metric, *sample.labels))
        found.append(Sample("memory_sql_difference", other - sample.value, (name,)))
    return found
