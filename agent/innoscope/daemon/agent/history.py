"""An hour of a few numbers of each server, for the page: kept whether anybody scrapes or not."""

from __future__ import annotations

import math
import threading
import time
from array import array
from bisect import bisect_left, bisect_right
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from innoscope.sampling.profile_history import CHUNK_S

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from innoscope.metrics.merge import Series
    from innoscope.sampling.profile_history import Chunk

#: Gauges without labels that are kept, as probes/catalog/metrics.yaml names them.
KEPT: Final = (
    "buffer_pool_dirty_pages",
    "buffer_pool_dirty_ratio",
    "buffer_pool_dirty_limit_ratio",
    "checkpoint_age_bytes",
    "checkpoint_age_max_bytes",
)
#: Digits that a drawing can show; exact numbers are in /metrics.
_DIGITS: Final = 5


class Ring:
    """Rows of numbers by name, in the order of time, for so long; 4 bytes a number and 8 a row."""

    def __init__(self, span_s: float, missing: float) -> None:
        self._span_s, self._missing = span_s, missing
        self._at = array("d")
        self._columns: dict[str, array[float]] = {}

    @property
    def newest(self) -> float:
        """Unix time of the last row, 0 without any."""
        return self._at[-1] if self._at else 0.0

    @property
    def used_bytes(self) -> int:
        """What the numbers occupy."""
        return sum(len(one) * one.itemsize for one in (self._at, *self._columns.values()))

    def add(self, at: float, row: Mapping[str, float]) -> None:
        """Append a row; of a clock that was set back, what had been the future is forgotten."""
        self._cut(bisect_left(self._at, at - self._span_s), bisect_left(self._at, at))
        for name in row.keys() - self._columns.keys():
            self._columns[name] = array("f", [self._missing]) * len(self._at)
        self._at.append(at)
        for name, column in self._columns.items():
            column.append(row.get(name, self._missing))

    def _cut(self, first: int, end: int) -> None:
        for column in (self._at, *self._columns.values()):
            del column[end:], column[:first]

    def since(self, at: float) -> tuple[list[float], dict[str, list[float | None]]]:
        """Rows later than that: their times, and the columns that have anything in them."""
        first = bisect_right(self._at, at)
        told = {name: [_short(value) for value in column[first:]] for name, column in self._columns.items()}
        empty = _short(self._missing)
        return self._at[first:].tolist(), {
            name: column for name, column in told.items() if any(value != empty for value in column)
        }


class _Kept:
    """One server's: average threads by wait class for each chunk of looks, and gauges at moments."""

    def __init__(self, span_s: float) -> None:
        self.waits = Ring(span_s, 0.0)
        self.gauges = Ring(span_s, math.nan)

    @property
    def newest(self) -> float:
        return max(self.waits.newest, self.gauges.newest)


class History:
    """All servers, by name. Safe to use from several threads."""

    def __init__(self, span_s: float, clock: Callable[[], float] = time.time) -> None:
        self._span_s = span_s
        self._clock = clock
        self._lock = threading.Lock()
        self._servers: dict[str, _Kept] = {}

    def looked(self, server: str, chunks: Iterable[Chunk]) -> None:
        """Take in what the stacks said; a row's time is when its chunk's ten seconds begin."""
        for chunk in chunks:
            threads: Counter[str] = Counter()
            for stack, count in chunk.counts.items():
                threads[stack.wait] += count
            at = chunk.start // CHUNK_S * CHUNK_S
            row = {wait: count / max(chunk.looks, 1) for wait, count in threads.items()}
            with self._lock:
                self._of(server).waits.add(at, row)

    def gathered(self, at: float, series: Iterable[Series]) -> None:
        """Take in one gathering, made at that Unix time; the same one a second time changes nothing."""
        rows: dict[str, dict[str, float]] = {}
        for one in series:
            if one.metric.name in KEPT and isinstance(one.value, int | float):
                rows.setdefault(one.server, {})[one.metric.name] = one.value
        with self._lock:
            for server, row in rows.items():
                self._of(server).gauges.add(at, row)
            since = self._clock() - self._span_s
            self._servers = {name: kept for name, kept in self._servers.items() if kept.newest >= since}

    def told(self, server: str, since: float = 0.0) -> dict[str, Any]:
        """``waits`` and ``gauges``, each with ``at`` and columns, of rows later than that; perhaps none."""
        with self._lock:
            kept = self._servers.get(server) or _Kept(self._span_s)
            threads, gauges = kept.waits.since(since), kept.gauges.since(since)
        return {
            "waits": {"at": threads[0], "threads": threads[1]},
            "gauges": {"at": gauges[0], "values": gauges[1]},
        }

    def newest(self, server: str) -> float:
        """Unix time of the last row of a server, 0 without any."""
        with self._lock:
            kept = self._servers.get(server)
            return kept.newest if kept else 0.0

    def used_bytes(self) -> int:
        """What all numbers occupy."""
        with self._lock:
            return sum(kept.waits.used_bytes + kept.gauges.used_bytes for kept in self._servers.values())

    def _of(self, server: str) -> _Kept:
        return self._servers.setdefault(server, _Kept(self._span_s))


def _short(value: float) -> float | None:
    """With as many digits as a drawing can show; None where there is no number."""
    if not math.isfinite(value):
        return None
    short = float(f"{value:.{_DIGITS}g}")
    return int(short) if short.is_integer() else short
