"""Convert series to prometheus_client metric families, and expose them as text or OpenMetrics."""

from __future__ import annotations

import threading
from itertools import accumulate
from typing import TYPE_CHECKING, Final

from prometheus_client import CollectorRegistry
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
)
from prometheus_client.exposition import choose_encoder

from innoscope.common.labels import label
from innoscope.common.samples import Histogram
from innoscope.metrics.registry import BUCKETS, PREFIX

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from prometheus_client import Metric as Family

    from innoscope.metrics.merge import ExportedSeries
    from innoscope.metrics.registry import Metric

#: Upper bounds of the buckets: the exponent of two in nanoseconds, and the ``le`` label in seconds.
_BOUNDS: Final = tuple((power, repr(2**power / 1e9)) for power in BUCKETS)
#: If more formats than this are cached, the cache is cleared, because clients could request any number.
_FORMATS: Final = 4


class _FixedCollector:
    """A prometheus_client collector that returns a fixed list of families."""

    def __init__(self, families: Iterable[Family]) -> None:
        self._families = tuple(families)

    def collect(self) -> Iterator[Family]:
        return iter(self._families)


def expose(series: Iterable[ExportedSeries], accept: str) -> tuple[bytes, str]:
    """Return ``(body, content type)`` in the format that the client's ``Accept`` header prefers."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_FixedCollector(families(series)))
    encoder, form = _encoder(accept)
    return encoder(registry), form


class Texts:
    """Caches the exposition of one collection in each requested format, for concurrent scrapes."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._series: tuple[ExportedSeries, ...] | None = None
        self._texts: dict[str, tuple[bytes, str]] = {}

    def of(self, series: tuple[ExportedSeries, ...], accept: str) -> tuple[bytes, str]:
        """Return the result of ``expose`` for ``series``, from the cache if possible."""
        form = _encoder(accept)[1]
        with self._lock:
            if series is not self._series or len(self._texts) > _FORMATS:
                self._series, self._texts = series, {}
            if form not in self._texts:
                self._texts[form] = expose(series, accept)
            return self._texts[form]


def _encoder(accept: str) -> tuple[Callable[[CollectorRegistry], bytes], str]:
    try:
        return choose_encoder(accept)
    except (TypeError, ValueError):  # malformed version in the header
        return choose_encoder("")


def families(series: Iterable[ExportedSeries]) -> list[Family]:
    """Return one family per metric, in the order of their first series.

    All label values are sanitized here: a single value that is not valid UTF-8 would make the whole
    exposition fail.
    """
    found: dict[str, Family] = {}
    for one in series:
        name = one.metric.name
        family = found.get(name)
        if family is None:
            family = found[name] = _empty(one.metric)
        server = () if one.metric.own else (label(one.server),)
        labels = (*server, *map(label, one.labels))
        if isinstance(family, HistogramMetricFamily):
            if isinstance(one.value, Histogram):
                family.add_metric(labels, buckets(one.value), one.value.total_ns / 1e9)
        elif isinstance(family, InfoMetricFamily):
            names = [each.name for each in one.metric.labels]
            family.add_metric(server, dict(zip(names, labels[len(server) :], strict=True)))
        elif isinstance(family, CounterMetricFamily | GaugeMetricFamily) and not isinstance(
            one.value, Histogram
        ):
            family.add_metric(labels, one.value)
    return list(found.values())


def _empty(metric: Metric) -> Family:
    name = PREFIX + metric.name
    server = [] if metric.own else ["server"]
    labels = [*server, *(each.name for each in metric.labels)]
    if metric.kind == "histogram":
        return HistogramMetricFamily(name, metric.help, labels=labels)
    if metric.kind == "info":
        return InfoMetricFamily(name.removesuffix("_info"), metric.help, labels=server)
    if metric.kind == "counter":
        return CounterMetricFamily(name, metric.help, labels=labels)
    return GaugeMetricFamily(name, metric.help, labels=labels)


def buckets(histogram: Histogram) -> list[tuple[str, float]]:
    """Return ``(le, cumulative count)`` of each bucket, including +Inf; ``le`` is in seconds."""
    upto = [0, *accumulate(histogram.buckets)]
    last = len(upto) - 1
    found: list[tuple[str, float]] = [(le, upto[min(power, last)]) for power, le in _BOUNDS]
    return [*found, ("+Inf", upto[last])]
