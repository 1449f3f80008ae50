"""Derive ratios, headroom, zones and remaining time from raw values. Pure functions: no I/O, no clock.

A value is named like its metric in ``probes/catalog/metrics.yaml``. The value of a labelled series is named
``metric.label`` (``read_ahead_pages.linear``). Unknown names are ignored.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from innoscope.common.samples import Sample

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

#: Checkpoint zones and their upper ends, as a share of the maximum checkpoint age.
_ZONES: Final = (("calm", 0.5), ("steady", 0.75), ("aggressive", 0.875), ("storm", math.inf))


def derive(
    values: Mapping[str, float], earlier: tuple[float, Mapping[str, float]] | None, now: float
) -> list[Sample]:
    """Return the samples derived from ``values``; samples without all their operands are omitted.

    ``earlier`` is ``(time, values)`` of the previous collection, or None.
    Both times are seconds of the same clock.
    """
    return [*_pool(values), *_checkpoint(values, earlier, now)]


def plain(values: Mapping[str, float], metrics: Iterable[str]) -> list[Sample]:
    """Return the samples for the values of these metrics, unchanged."""
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
        # The three lengths are not read at the same time, so a page may be counted twice.
        yield Sample("buffer_pool_other_pages", max(0, pages - free - data))
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
    most = values.get("checkpoint_age_max_bytes")
    if not most:
        return
    ratio = age / most
    yield Sample("checkpoint_age_ratio", ratio)
    current = next(zone for zone, end in _ZONES if ratio <= end)
    for zone, _ in _ZONES:
        yield Sample("checkpoint_zone", int(zone == current), (zone,))
    before = _age(earlier[1]) if earlier is not None else None
    if earlier is not None and before is not None and now > earlier[0]:
        rate = (age - before) / (now - earlier[0])
        yield Sample("redo_full_seconds", max(0.0, most - age) / rate if rate > 0 else math.inf)


def _age(values: Mapping[str, float]) -> float | None:
    """Return the server's value, or LSN minus checkpoint LSN.

    The LSNs are read separately, so their difference can be negative; 0 is returned in that case.
    """
    if "checkpoint_age_bytes" in values:
        return values["checkpoint_age_bytes"]
    lsn, checkpoint = values.get("redo_written_bytes"), values.get("redo_checkpoint_bytes")
    return None if lsn is None or checkpoint is None else max(0, lsn - checkpoint)
