"""Store selected metrics of each server for the live page, for an hour by default.

Recording does not depend on scrapes by Prometheus.
"""

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

    from innoscope.metrics.merge import ExportedSeries
    from innoscope.sampling.profile_history import Chunk

#: Recorded gauges (without labels), named as in probes/catalog/metrics.yaml.
METRICS: Final = (
    "buffer_pool_dirty_pages",
    "buffer_pool_dirty_ratio",
    "buffer_pool_dirty_limit_ratio",
    "checkpoint_age_bytes",
    "checkpoint_age_max_bytes",
)
#: Significant digits of the values in responses. A chart cannot show more; /metrics exports exact values.
_DIGITS: Final = 5


class Ring:
    """Stores time series as named columns: 4 bytes per value, and 8 bytes per row for the time.

    Rows older than ``span_s`` seconds are dropped. ``missing`` fills the columns for which a row has no
    value.
    """

    def __init__(self, span_s: float, missing: float) -> None:
        self._span_s, self._missing = span_s, missing
        self._at = array("d")
        self._columns: dict[str, array[float]] = {}

    @property
    def newest(self) -> float:
        """Return the Unix time of the last row; 0 if there are no rows."""
        return self._at[-1] if self._at else 0.0

    @property
    def used_bytes(self) -> int:
        """Return the size of all arrays in bytes."""
        return sum(len(one) * one.itemsize for one in (self._at, *self._columns.values()))

    def add(self, at: float, row: Mapping[str, float]) -> None:
        """Append a row. Drop existing rows at or after ``at``, for example if the clock was set back."""
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
        """Return the times of the rows after ``at``, and the columns that have a value in these rows."""
        first = bisect_right(self._at, at)
        columns = {
            name: [_rounded(value) for value in column[first:]] for name, column in self._columns.items()
        }
        empty = _rounded(self._missing)
        return self._at[first:].tolist(), {
            name: column for name, column in columns.items() if any(value != empty for value in column)
        }


class _ServerHistory:
    """One server's history: mean thread counts by wait class for each chunk, and gauges for each scrape."""

    def __init__(self, span_s: float) -> None:
        self.waits = Ring(span_s, 0.0)
        self.gauges = Ring(span_s, math.nan)

    @property
    def newest(self) -> float:
        return max(self.waits.newest, self.gauges.newest)


class ServerHistories:
    """The histories of all servers, by server name. Thread-safe."""

    def __init__(self, span_s: float, clock: Callable[[], float] = time.time) -> None:
        self._span_s = span_s
        self._clock = clock
        self._lock = threading.Lock()
        self._servers: dict[str, _ServerHistory] = {}

    def add_profiles(self, server: str, chunks: Iterable[Chunk]) -> None:
        """Add a row for each chunk. The row's time is the start of the chunk's ten-second interval."""
        for chunk in chunks:
            threads: Counter[str] = Counter()
            for stack, count in chunk.counts.items():
                threads[stack.wait] += count
            at = chunk.start // CHUNK_S * CHUNK_S
            row = {wait: count / max(chunk.snapshots, 1) for wait, count in threads.items()}
            with self._lock:
                self._of(server).waits.add(at, row)

    def add_scrape(self, at: float, series: Iterable[ExportedSeries]) -> None:
        """Add the gauges of a scrape made at Unix time ``at``. Adding the same scrape twice has no effect.

        Forget servers whose last row is older than the span.
        """
        rows: dict[str, dict[str, float]] = {}
        for one in series:
            if one.metric.name in METRICS and isinstance(one.value, int | float):
                rows.setdefault(one.server, {})[one.metric.name] = one.value
        with self._lock:
            for server, row in rows.items():
                self._of(server).gauges.add(at, row)
            since = self._clock() - self._span_s
            self._servers = {
                name: history for name, history in self._servers.items() if history.newest >= since
            }

    def rows_since(self, server: str, since: float = 0.0) -> dict[str, Any]:
        """Return the rows after ``since``: ``waits`` and ``gauges``, each with ``at`` and named columns."""
        with self._lock:
            history = self._servers.get(server) or _ServerHistory(self._span_s)
            threads, gauges = history.waits.since(since), history.gauges.since(since)
        return {
            "waits": {"at": threads[0], "threads": threads[1]},
            "gauges": {"at": gauges[0], "values": gauges[1]},
        }

    def newest(self, server: str) -> float:
        """Return the Unix time of a server's last row; 0 if there is none."""
        with self._lock:
            history = self._servers.get(server)
            return history.newest if history else 0.0

    def used_bytes(self) -> int:
        """Return the size of all histories in bytes."""
        with self._lock:
            return sum(one.waits.used_bytes + one.gauges.used_bytes for one in self._servers.values())

    def _of(self, server: str) -> _ServerHistory:
        return self._servers.setdefault(server, _ServerHistory(self._span_s))


def _rounded(value: float) -> float | None:
    """Round to ``_DIGITS`` significant digits. Return None if the value is not finite."""
    if not math.isfinite(value):
        return None
    rounded = float(f"{value:.{_DIGITS}g}")
    return int(rounded) if rounded.is_integer() else rounded
