"""Derive ratios, headroom, zones and remaining time from raw values, without I/O and without a clock.

Values are keyed by metric name, as in ``probes/catalog/metrics.yaml``; in a labeled series, the name is
followed by a dot and the label's value (``read_ahead_pages.linear``). Unknown names are ignored.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from innoscope.common.samples import Sample

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

#: Zones of the checkpoint age and of the modified age, and their upper bounds as shares of the maximum
#: checkpoint age. The bounds are 1 - 1/ratio, for LOG_POOL_PREFLUSH_RATIO_ASYNC (8),
#: LOG_POOL_PREFLUSH_RATIO_SYNC (16) and LOG_POOL_CHECKPOINT_RATIO_ASYNC (32), which log_calc_max_ages uses
#: (log0log.c in 5.5, log0log.cc in 5.6 and 5.7, log0chkp.cc in 8.0). From 8.0.30 on, the ratios are called
#: LOG_FORCING_ADAPTIVE_FLUSH_RATIO_MIN, LOG_FORCING_ADAPTIVE_FLUSH_RATIO_MAX and
#: LOG_AGGRESSIVE_CHECKPOINT_RATIO_MIN. MariaDB 10.5 and newer use only the ratio 8 (log_t::set_capacity).
_ZONES: Final = (("calm", 7 / 8), ("async", 15 / 16), ("sync", 31 / 32), ("checkpoint", math.inf))


def derive(
    values: Mapping[str, float], earlier: tuple[float, Mapping[str, float]] | None, now: float
) -> list[Sample]:
    """Return the samples derived from ``values``, except those with missing operands.

    ``earlier`` is ``(time, values)`` of the previous collection, or None. Both times are in seconds, from the
    same clock.
    """
    return [*_pool(values), *_checkpoint(values, earlier, now)]


def plain(values: Mapping[str, float], metrics: Iterable[str]) -> list[Sample]:
    """Return the values of ``metrics`` as samples, unchanged."""
    wanted = frozenset(metrics)
    split = ((*name.partition("."), value) for name, value in values.items())
    return [
        Sample(metric, value, (label,) if label else ())
        for metric, _, label, value in split
        if metric in wanted
    ]


def _pool(values: Mapping[str, float]) -> Iterator[Sample]:
    pages, free = values.get("buffer_pool_pages"), values.get("buffer_pool_free_pages")
    data, dirty = values.get("buffer_pool_data_pages"), values.get("buffer_pool_dirty_pages")
    limit = values.get("buffer_pool_dirty_limit_ratio")
    if free is None or data is None:
        return
    if pages is not None:
        # The three counts are read at different times, so their difference can be negative.
        other = max(0, pages - free - data)
        yield Sample("buffer_pool_other_pages", other)
        hashed = values.get("buffer_pool_owner_pages.hash_index")
        if hashed is not None:
            recovered = values.get("buffer_pool_owner_pages.recovery", 0)
            yield Sample("buffer_pool_owner_pages", max(0, other - hashed - recovered), ("locks",))
    if dirty is not None and free + data > 0:
        ratio = dirty / (free + data)
        yield Sample("buffer_pool_dirty_ratio", ratio)
        if limit is not None:
            yield Sample("buffer_pool_dirty_headroom_ratio", limit - ratio)


def _checkpoint(
    values: Mapping[str, float], earlier: tuple[float, Mapping[str, float]] | None, now: float
) -> Iterator[Sample]:
    age = _age(values)
    if age is None:
        return
    yield Sample("checkpoint_age_bytes", age)
    modified = _modified_age(values)
    if modified is not None:
        yield Sample("modified_age_bytes", modified)
    most = values.get("checkpoint_age_max_bytes")
    if not most:
        return
    ratio = age / most
    yield Sample("checkpoint_age_ratio", ratio)
    yield from _zones("checkpoint_zone", ratio)
    if modified is not None:
        yield Sample("modified_age_ratio", modified / most)
        yield from _zones("modified_zone", modified / most)
    before = _age(earlier[1]) if earlier is not None else None
    if earlier is not None and before is not None and now > earlier[0]:
        rate = (age - before) / (now - earlier[0])
        yield Sample("redo_full_seconds", max(0.0, most - age) / rate if rate > 0 else math.inf)


def _zones(metric: str, ratio: float) -> Iterator[Sample]:
    current = next(zone for zone, end in _ZONES if ratio <= end)
    for zone, _ in _ZONES:
        yield Sample(metric, int(zone == current), (zone,))


def _modified_age(values: Mapping[str, float]) -> float | None:
    """Return the current LSN minus the LSN of the oldest modification, in bytes; 0 if no page is dirty."""
    lsn, oldest = values.get("redo_written_bytes"), values.get("redo_oldest_change_bytes")
    if lsn is None or oldest is None:
        return None
    return max(0, lsn - oldest) if oldest else 0


def _age(values: Mapping[str, float]) -> float | None:
    """Return the checkpoint age in bytes: the server's value, or else the LSN minus the checkpoint LSN.

    The LSNs are read separately, so their difference can be negative; 0 is returned in that case.
    """
    if "checkpoint_age_bytes" in values:
        return values["checkpoint_age_bytes"]
    lsn, checkpoint = values.get("redo_written_bytes"), values.get("redo_checkpoint_bytes")
    return None if lsn is None or checkpoint is None else max(0, lsn - checkpoint)
