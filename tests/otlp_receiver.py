"""A receiver of OTLP/HTTP in JSON for tests, which checks each request against the protocol."""

from __future__ import annotations

import gzip
import json
import re
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from receiver import Handler, Receiver

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

#: The fields of messages in opentelemetry/proto (open-telemetry/opentelemetry-proto 1.10.0) that the agent
#: may use. ``[T]`` is a repeated field. ``u64`` is a decimal string in JSON.
MESSAGES: dict[str, dict[str, Any]] = {
    "metrics": {"resourceMetrics": ["ResourceMetrics"]},
    "ResourceMetrics": {"resource": "Resource", "scopeMetrics": ["ScopeMetrics"], "schemaUrl": "string"},
    "ScopeMetrics": {"scope": "Scope", "metrics": ["Metric"], "schemaUrl": "string"},
    "Metric": {
        "name": "string", "description": "string", "unit": "string", "gauge": "Gauge", "sum": "Sum",
        "histogram": "Histogram",
    },
    "Gauge": {"dataPoints": ["Number"]},
    "Sum": {"dataPoints": ["Number"], "aggregationTemporality": "enum", "isMonotonic": "bool"},
    "Histogram": {"dataPoints": ["HistogramPoint"], "aggregationTemporality": "enum"},
    "Number": {
        "attributes": ["KeyValue"], "startTimeUnixNano": "u64", "timeUnixNano": "u64", "asDouble": "double",
    },
    "HistogramPoint": {
        "attributes": ["KeyValue"], "startTimeUnixNano": "u64", "timeUnixNano": "u64", "count": "u64",
        "sum": "double", "bucketCounts": ["u64"], "explicitBounds": ["double"],
    },
    "logs": {"resourceLogs": ["ResourceLogs"]},
    "ResourceLogs": {"resource": "Resource", "scopeLogs": ["ScopeLogs"], "schemaUrl": "string"},
    "ScopeLogs": {"scope": "Scope", "logRecords": ["LogRecord"], "schemaUrl": "string"},
    "LogRecord": {
        "timeUnixNano": "u64", "observedTimeUnixNano": "u64", "severityNumber": "enum",
        "severityText": "string", "body": "AnyValue", "attributes": ["KeyValue"], "eventName": "string",
    },
    "profiles": {"resourceProfiles": ["ResourceProfiles"], "dictionary": "ProfilesDictionary"},
    "ResourceProfiles": {"resource": "Resource", "scopeProfiles": ["ScopeProfiles"]},
    "ScopeProfiles": {"scope": "Scope", "profiles": ["Profile"]},
    "Profile": {
        "sampleType": "ValueType", "samples": ["Sample"], "timeUnixNano": "u64", "durationNano": "u64",
    },
    "ValueType": {"typeStrindex": "i32", "unitStrindex": "i32"},
    "Sample": {"stackIndex": "i32", "attributeIndices": ["i32"], "values": ["u64"]},
    "ProfilesDictionary": {
        "mappingTable": ["Mapping"], "locationTable": ["Location"], "functionTable": ["Function"],
        "linkTable": ["Link"], "stringTable": ["string"], "attributeTable": ["KeyValueAndUnit"],
        "stackTable": ["Stack"],
    },
    "Mapping": {"filenameStrindex": "i32"},
    "Location": {"mappingIndex": "i32", "lines": ["Line"]},
    "Line": {"functionIndex": "i32"},
    "Function": {"nameStrindex": "i32"},
    "Link": {},
    "KeyValueAndUnit": {"keyStrindex": "i32", "value": "AnyValue"},
    "Stack": {"locationIndices": ["i32"]},
    "Resource": {"attributes": ["KeyValue"]},
    "Scope": {"name": "string", "version": "string"},
    "KeyValue": {"key": "string", "value": "AnyValue"},
    "AnyValue": {"stringValue": "string", "intValue": "u64", "doubleValue": "double"},
}  # fmt: skip
_SCALARS: dict[str, Any] = {"string": str, "double": (int, float), "enum": int, "i32": int, "bool": bool}
#: Values of a double that JSON cannot represent as numbers.
_NOT_FINITE = ("NaN", "Infinity", "-Infinity")
PATHS = {"/v1/metrics": "metrics", "/v1/logs": "logs", "/v1development/profiles": "profiles"}


def check(value: Any, kind: Any, where: str) -> None:
    """Raise AssertionError if a value is not of this kind."""
    if isinstance(kind, list):
        assert isinstance(value, list), where
        for number, item in enumerate(value):
            check(item, kind[0], f"{where}[{number}]")
    elif kind == "u64":
        assert isinstance(value, str), where
        assert re.fullmatch(r"0|[1-9]\d{0,19}", value), (where, value)
    elif kind == "double" and value in _NOT_FINITE:
        pass
    elif kind in _SCALARS:
        assert isinstance(value, _SCALARS[kind]), (where, value)
        assert isinstance(value, bool) == (kind == "bool"), (where, value)
    else:
        fields = MESSAGES[kind]
        assert isinstance(value, dict), where
        assert value.keys() <= fields.keys(), (where, value.keys() - fields.keys())
        for key, item in value.items():
            check(item, fields[key], f"{where}.{key}")


def attributes(message: dict[str, Any], strings: Sequence[str] = ()) -> dict[str, Any]:
    """Return the attributes of a message. Raise AssertionError if one is there twice.

    In profiles, keys and texts may be indices into ``strings``: common/v1/common.proto.
    """
    pairs = message.get("attributes", [])
    found = {}
    for pair in pairs:
        [(kind, value)] = pair["value"].items()
        key = pair["key"] if "key" in pair else strings[pair["keyStrindex"]]
        found[key] = strings[value] if kind == "stringValueStrindex" else value
    assert len(found) == len(pairs), "a key twice"
    return found


def points(requests: list[dict[str, Any]]) -> dict[tuple[str, frozenset[Any]], list[dict[str, Any]]]:
    """Return the data points by name and attributes, each with its resource's attributes and its metric."""
    found: dict[tuple[str, frozenset[Any]], list[dict[str, Any]]] = {}
    for request in requests:
        for resource in request["resourceMetrics"]:
            for metric in (each for scope in resource["scopeMetrics"] for each in scope["metrics"]):
                (kind,) = metric.keys() & {"gauge", "sum", "histogram"}
                for point in metric[kind]["dataPoints"]:
                    key = metric["name"], frozenset(attributes(point).items())
                    about = {"resource": attributes(resource["resource"]), "metric": metric, "kind": kind}
                    found.setdefault(key, []).append(point | about)
    return found


def records(requests: list[dict[str, Any]]) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Return all log records, each with the attributes of its resource."""
    return [
        (record, attributes(resource["resource"]))
        for request in requests
        for resource in request["resourceLogs"]
        for scope in resource["scopeLogs"]
        for record in scope["logRecords"]
    ]


def profiles(requests: list[dict[str, Any]]) -> list[OtlpProfile]:
    """Return all profiles, with their indices resolved."""
    return [
        OtlpProfile.of(profile, request["dictionary"], resource["resource"])
        for request in requests
        for resource in request["resourceProfiles"]
        for scope in resource["scopeProfiles"]
        for profile in scope["profiles"]
    ]


@dataclass(frozen=True, slots=True)
class OtlpProfile:
    """A profile. ``counts`` contains the values by stack (innermost function first) and attributes."""

    sample_type: tuple[str, str]
    counts: Counter[tuple[tuple[str, ...], frozenset[tuple[str, str]]]]
    modules: frozenset[str]
    start_ns: int
    duration_ns: int
    resource: dict[str, Any]

    @classmethod
    def of(cls, profile: dict[str, Any], tables: dict[str, Any], resource: dict[str, Any]) -> OtlpProfile:
        strings = tables["stringTable"]
        assert strings[0] == ""
        assert all(len({json.dumps(one) for one in table}) == len(table) for table in tables.values())

        def name(location: int) -> str:
            [line] = tables["locationTable"][location]["lines"]
            return str(strings[tables["functionTable"][line["functionIndex"]]["nameStrindex"]])

        def pair(index: int) -> tuple[str, str]:
            entry = tables["attributeTable"][index]
            [(key, value)] = attributes({"attributes": [entry]}, strings).items()
            return key, value

        counts: Counter[tuple[tuple[str, ...], frozenset[tuple[str, str]]]] = Counter()
        for sample in profile["samples"]:
            stack = tables["stackTable"][sample["stackIndex"]]["locationIndices"]
            [value] = sample["values"]
            key = tuple(map(name, stack)), frozenset(map(pair, sample["attributeIndices"]))
            counts[key] += int(value)
        kind = profile["sampleType"]
        return cls(
            (strings[kind["typeStrindex"]], strings[kind["unitStrindex"]]),
            counts,
            frozenset(strings[one["filenameStrindex"]] for one in tables["mappingTable"][1:]),
            int(profile["timeUnixNano"]),
            int(profile["durationNano"]),
            attributes(resource, strings),
        )

    def by_attribute(self, key: str) -> Counter[str]:
        """Return the sums of the values by the value of an attribute."""
        found: Counter[str] = Counter()
        for (_, pairs), count in self.counts.items():
            if key in dict(pairs):
                found[dict(pairs)[key]] += count
        return found


class OtlpReceiver(Receiver):
    """A receiver that stores the requests by signal. ``answers`` contains the response to each signal.

    Without ``strict``, the fields of the messages are not checked.
    """

    def __init__(self, *, certificate: Path | None = None, strict: bool = True) -> None:
        super().__init__("otlp", certificate=certificate, handler=_OtlpHandler)
        self.strict = strict
        self.signals: dict[str, list[dict[str, Any]]] = {signal: [] for signal in PATHS.values()}
        self.answers = dict.fromkeys(PATHS.values(), b"{}")
        self.headers: list[dict[str, str]] = []

    def accept(self, signal: str, document: dict[str, Any], headers: dict[str, str]) -> None:
        with self._changed:
            self.signals[signal].append(document)
            self.headers.append(headers)
            self._changed.notify_all()


class _OtlpHandler(Handler):
    def do_POST(self) -> None:
        there = cast("OtlpReceiver", self.server.receiver)
        fault = there.fault()
        if fault is not None:
            fault(self)
            return
        body = self.body()
        signal = PATHS.get(self.path)
        if signal is None:
            self.answer(404)
            return
        try:
            assert self.headers["Content-Type"] == "application/json"
            if self.headers["Content-Encoding"] == "gzip":
                body = gzip.decompress(body)
            document = json.loads(body, parse_constant=_no_constant)
            if there.strict:
                check(document, signal, signal)
        except (AssertionError, ValueError) as error:
            there.complaints.append(f"{type(error).__name__}: {error}")
            self.answer(400, b'{"message":"not as specified"}')
            return
        there.accept(signal, document, dict(self.headers))
        self.answer(200, there.answers[signal])


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")
