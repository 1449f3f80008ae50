"""Where memory and SQL both tell a number: the difference, so that a wrong offset is seen."""

from __future__ import annotations

from typing import TYPE_CHECKING

from innoscope.common.samples import Histogram, Sample, by_series

if TYPE_CHECKING:
    from collections.abc import Container, Iterable

    from innoscope.common.samples import Outcome


def differences(memory: Outcome, sql: Iterable[Sample], metrics: Container[str]) -> list[Sample]:
    """``memory_sql_difference`` for each series of ``metrics`` that both tell, read one after the other.

    SQL tells what this process of the server has counted, so the past is left out of memory's counters.
    """
    told, past = _numbers(memory.samples), _numbers(memory.past)
    found = []
    for series, value in _numbers(sql).items():
        if series[0] in metrics and series in told:
            own = told[series] - past.get(series, 0)
            found.append(Sample("memory_sql_difference", own - value, ("_".join((series[0], *series[1])),)))
    return found


def _numbers(samples: Iterable[Sample]) -> dict[tuple[str, tuple[str, ...]], float]:
    return {series: value for series, value in by_series(samples).items() if not isinstance(value, Histogram)}
