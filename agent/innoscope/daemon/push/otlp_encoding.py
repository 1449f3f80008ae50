"""Encode metrics and log records as OTLP/HTTP requests in JSON.

Format: the OpenTelemetry Protocol Specification ("JSON Protobuf Encoding"), and the messages in
opentelemetry/proto (metrics/v1/metrics.proto, logs/v1/logs.proto, resource/v1/resource.proto), both in
open-telemetry/opentelemetry-proto 1.10.0. Keys are in lowerCamelCase, 64-bit integers are decimal strings,
and enumerations are numbers.
"""

from __future__ import annotations

import gzip
import math
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

from innoscope import __version__
from innoscope.common import sanitize
from innoscope.common.labels import label
from innoscope.common.samples import Histogram
from innoscope.daemon.push.queue import OVERHEAD
from innoscope.metrics.families import buckets

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from innoscope.common.samples import Value
    from innoscope.metrics.merge import ExportedSeries

    #: Attributes of a resource, or of a log record.
    Attributes = Mapping[str, str | int | float | None]

#: Paths of the signals, relative to the base URL.
PATHS: Final = {"metrics": "/v1/metrics", "logs": "/v1/logs", "profiles": "/v1development/profiles"}
#: Maximum number of data points in a request, unless one server has more. Their JSON takes about 3 MB. The
#: specification recommends that receivers and senders limit a request to 20 MiB by default.
_MAX_POINTS: Final = 10_000
#: AGGREGATION_TEMPORALITY_CUMULATIVE in metrics.proto.
_CUMULATIVE: Final = 2
#: Maximum number of characters of a text in a log record.
_MAX_WORDS: Final = 500
#: Seconds for which the start time of a series is stored after its last value.
_FORGET_S: Final = 3600
SCOPE: Final = {"name": "innoscope", "version": __version__}


@dataclass(frozen=True, slots=True)
class OtlpPayload:
    """The body of one request, compressed with gzip. ``items`` counts data points, records or profiles."""

    signal: str
    items: int
    body: bytes

    @property
    def size(self) -> int:
        """Return the memory that the payload occupies, in bytes."""
        return len(self.body) + OVERHEAD


@dataclass(frozen=True, slots=True)
class LogRecord:
    """An event of one server. ``at`` is a Unix time. The severity is ERROR if ``urgent``, otherwise WARN."""

    server: str
    event: str
    at: float
    title: str
    urgent: bool
    attributes: Attributes = field(default_factory=dict)


class StartTimes:
    """The start times of cumulative series, in Unix nanoseconds.

    The time at which a counter of a server was 0 is unknown, so a series starts at its first value, with the
    start time equal to the time of the value (specification/metrics/data-model.md in
    open-telemetry/opentelemetry-specification, "Cumulative streams: handling unknown start time"). It starts
    again if the value decreases.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[str, str, tuple[str, ...]], tuple[int, float, int]] = {}

    def of(self, series: ExportedSeries, now_ns: int) -> int:
        """Return the start time of a series, whose value was read at ``now_ns``."""
        value = series.value.count if isinstance(series.value, Histogram) else series.value
        key = (series.metric.name, series.server, series.labels)
        start, last, _ = self._known.get(key, (now_ns, value, now_ns))
        start = now_ns if value < last else start
        self._known[key] = (start, value, now_ns)
        return start

    def forget(self, now_ns: int) -> None:
        """Forget the series that have had no value for an hour."""
        oldest = now_ns - _FORGET_S * 10**9
        self._known = {key: known for key, known in self._known.items() if known[2] >= oldest}

    def restart(self) -> None:
        """Start all series again, because a value was lost, which may have been the first one."""
        self._known.clear()


def metrics(
    series: Iterable[ExportedSeries], resources: Mapping[str, Attributes], at_ns: int, starts: StartTimes
) -> Iterator[OtlpPayload]:
    """Yield the requests with the values of all series, which were read at ``at_ns``.

    ``resources`` contains the attributes of each server, and under "" the agent's. The names and the
    attributes of data points (including ``server``) are the same as in /metrics. No unit is set: the names
    contain the units, and Prometheus' receiver would append a unit again.
    """
    batch: list[dict[str, Any]] = []
    points = 0
    for server, named in _by_server(series).items():
        encoded = [_metric(group, at_ns, starts) for group in named.values()]
        count = sum(map(len, named.values()))
        if batch and points + count > _MAX_POINTS:
            yield payload("metrics", points, {"resourceMetrics": batch})
            batch, points = [], 0
        of = resource(server, resources)
        batch.append({"resource": of, "scopeMetrics": [{"scope": SCOPE, "metrics": encoded}]})
        points += count
    starts.forget(at_ns)
    if batch:
        yield payload("metrics", points, {"resourceMetrics": batch})


def logs(
    records: Iterable[LogRecord], resources: Mapping[str, Attributes], observed_ns: int
) -> OtlpPayload | None:
    """Return the request with the records, or None if there are none."""
    by_server: dict[str, list[dict[str, Any]]] = {}
    for record in records:
        by_server.setdefault(record.server, []).append(_record(record, observed_ns))
    if not by_server:
        return None
    documents = [
        {
            "resource": resource(server, resources),
            "scopeLogs": [{"scope": SCOPE, "logRecords": encoded}],
        }
        for server, encoded in by_server.items()
    ]
    return payload("logs", sum(map(len, by_server.values())), {"resourceLogs": documents})


def _by_server(series: Iterable[ExportedSeries]) -> dict[str, dict[str, list[ExportedSeries]]]:
    """Group the series by server and metric."""
    found: dict[str, dict[str, list[ExportedSeries]]] = {}
    for one in series:
        found.setdefault(one.server, {}).setdefault(one.metric.name, []).append(one)
    return found


def _metric(group: list[ExportedSeries], at_ns: int, starts: StartTimes) -> dict[str, Any]:
    metric = group[0].metric
    document: dict[str, Any] = {"name": metric.exported, "description": metric.help}
    if metric.kind == "histogram":
        points = [_histogram_point(one, at_ns, starts) for one in group]
        return document | {"histogram": {"dataPoints": points, "aggregationTemporality": _CUMULATIVE}}
    if metric.kind == "counter":
        points = [_point(one, at_ns) | _started(starts.of(one, at_ns)) for one in group]
        total = {"dataPoints": points, "aggregationTemporality": _CUMULATIVE, "isMonotonic": True}
        return document | {"sum": total}
    return document | {"gauge": {"dataPoints": [_point(one, at_ns) for one in group]}}


def _point(series: ExportedSeries, at_ns: int) -> dict[str, Any]:
    """Return a data point. All values are doubles, so that the type of a series never changes."""
    return {**_labels(series, at_ns), "asDouble": _double(series.value)}


def _histogram_point(series: ExportedSeries, at_ns: int, starts: StartTimes) -> dict[str, Any]:
    assert isinstance(series.value, Histogram)  # noqa: S101
    cumulative = buckets(series.value)
    upto = [0.0, *(count for _, count in cumulative)]
    return {
        **_labels(series, at_ns),
        **_started(starts.of(series, at_ns)),
        "count": str(series.value.count),
        "sum": series.value.total_ns / 1e9,
        "explicitBounds": [float(le) for le, _ in cumulative[:-1]],
        "bucketCounts": [str(int(after - before)) for before, after in pairwise(upto)],
    }


def _labels(series: ExportedSeries, at_ns: int) -> dict[str, Any]:
    names = [one.name for one in series.metric.labels]
    server = {} if series.metric.own else {"server": series.server}
    attributes = _attributes({**server, **dict(zip(names, series.labels, strict=True))})
    return {"attributes": attributes, "timeUnixNano": str(at_ns)}


def _started(at_ns: int) -> dict[str, str]:
    return {"startTimeUnixNano": str(at_ns)}


def _double(value: Value) -> float | str:
    """Return a double of protobuf's JSON mapping, in which values that are not finite are strings."""
    number = value.total_ns / 1e9 if isinstance(value, Histogram) else float(value)
    if math.isfinite(number):
        return number
    return "NaN" if math.isnan(number) else "Infinity" if number > 0 else "-Infinity"


def _record(record: LogRecord, observed_ns: int) -> dict[str, Any]:
    # SeverityNumber in logs.proto: 13 is WARN, 17 is ERROR
    number, text = (17, "ERROR") if record.urgent else (13, "WARN")
    return {
        "timeUnixNano": str(round(record.at * 1000) * 1_000_000),
        "observedTimeUnixNano": str(observed_ns),
        "severityNumber": number,
        "severityText": text,
        "eventName": record.event,
        "body": {"stringValue": sanitize.words(record.title, _MAX_WORDS)},
        "attributes": [
            {"key": key, "value": _any_value(value, _MAX_WORDS)}
            for key, value in record.attributes.items()
            if value is not None
        ],
    }


def _attributes(attributes: Attributes) -> list[dict[str, Any]]:
    return [
        {"key": key, "value": _any_value(value)} for key, value in attributes.items() if value is not None
    ]


def _any_value(value: str | float, limit: int | None = None) -> dict[str, Any]:
    """Return an AnyValue of common.proto.

    Without ``limit``, a text has the same form as the label of a metric in /metrics. With it, a text has at
    most that many characters.
    """
    if isinstance(value, str):
        return {"stringValue": label(value) if limit is None else sanitize.words(value, limit)}
    return {"intValue": str(value)} if isinstance(value, int) else {"doubleValue": value}


def resource(server: str, resources: Mapping[str, Attributes]) -> dict[str, Any]:
    """Return the message that describes a server, or the agent if ``server`` is ""."""
    unknown = {**resources[""], "innoscope.server": server}  # the agent has forgotten the server
    return {"attributes": _attributes(resources.get(server, unknown))}


def payload(signal: str, items: int, document: dict[str, Any]) -> OtlpPayload:
    """Return the request with a message. ``items`` is its number of data points, records or profiles."""
    text = sanitize.dumps(document, separators=(",", ":"), allow_nan=False)
    return OtlpPayload(signal, items, gzip.compress(text.encode(), compresslevel=5, mtime=0))
