"""Compare values that both memory and SQL report, to detect wrong memory offsets."""

from __future__ import annotations

from typing import TYPE_CHECKING

from innoscope.common.samples import Histogram, Sample, by_series

if TYPE_CHECKING:
    from collections.abc import Container, Iterable

    from innoscope.common.samples import Outcome


def differences(memory: Outcome, sql: Iterable[Sample], metrics: Container[str]) -> list[Sample]:
    """Return ``memory_sql_difference`` for each series of ``metrics`` that both sources report.

    SQL reports only the counts of the current server process, so the counts of earlier processes are
    subtracted from memory's counters. The two values are read one after the other, so small differences are
    normal.
    """
    in_memory, past = _numbers(memory.samples), _numbers(memory.past)
    found = []
    for series, value in _numbers(sql).items():
        if series[0] in metrics and series in in_memory:
            own = in_memory[series] - past.get(series, 0)
            found.append(Sample("memory_sql_difference", own - value, ("_".join((series[0], *series[1])),)))
    return found


def _numbers(samples: Iterable[Sample]) -> dict[tuple[str, tuple[str, ...]], float]:
    return {series: value for series, value in by_series(samples).items() if not isinstance(value, Histogram)}
