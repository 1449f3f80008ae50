"""All signals are sent in OTLP's JSON encoding, with retries as specified."""

from __future__ import annotations

import gzip
import json
import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

import pprofile
import receiver as faults
from innoscope.common import schema
from innoscope.common.errors import BadFile
from innoscope.common.samples import Histogram
from innoscope.daemon.push import otlp_encoding, otlp_profiles
from innoscope.daemon.push.otlp_encoding import StartTimes
from innoscope.daemon.push.profile_merger import ServerChunks
from innoscope.daemon.push.pusher import queued_profile
from innoscope.daemon.push.settings import Otlp
from innoscope.metrics import registry
from innoscope.metrics.families import expose
from innoscope.metrics.merge import ExportedSeries
from innoscope.sampling.model import Trust
from innoscope.sampling.profile_history import Chunk, ClassifiedStack
from otlp_receiver import OtlpReceiver, attributes, check, points, profiles, records
from unit.snapshots import IDLE, ROW_LOCK, target

if TYPE_CHECKING:
    from pathlib import Path


from unit.otlp_exporter import RESOURCES, WALL, T, World, finding, series

CHUNK = Chunk(
    WALL + 0.25, WALL + 9.25, 10, 40.0,
    {
        ClassifiedStack.of("idle", Trust.EXACT, IDLE): 30,
        ClassifiedStack.of("row_lock", Trust.TORN, ROW_LOCK): 12,
    },
)  # fmt: skip
SERIES = (
    ("threads_cut", "shop", (), 3),
    ("sensor_up", "", (), 1),
    ("build_info", "", ("1.2",), 1),
    ("push_failures", "", ("busy",), 7),
    ("mysqld_up", "hostile\x1b\udcff", (), 1),
)


def histogram() -> ExportedSeries:
    name = next(one for one in registry.default() if one.kind == "histogram" and not one.labels)
    return ExportedSeries(name, "shop", (), Histogram((0,) * 15 + (4, 0, 2) + (0,) * 20 + (1,), 123_000_000))


def everything() -> tuple[ExportedSeries, ...]:
    return (*(series(*one) for one in SERIES), histogram())


def documents(*found: ExportedSeries, at_ns: int = T, starts: StartTimes | None = None) -> list[Any]:
    made = otlp_encoding.metrics(found, RESOURCES, at_ns, starts or StartTimes())
    return [json.loads(gzip.decompress(payload.body)) for payload in made]


# ── encoding ────────────────────────────────────────────────────────────────────────────────────────────


def test_values_and_names_are_those_of_the_metrics_page() -> None:
    """Compare with what Prometheus would read from /metrics."""
    text = expose(everything(), "text/plain")[0].decode()
    scraped = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            scraped[sample.name, frozenset(sample.labels.items())] = sample.value
    found = points(documents(*everything()))
    for (name, labels), [point] in found.items():
        if point["kind"] == "histogram":
            assert scraped.pop((f"{name}_count", labels)) == int(point["count"])
            assert scraped.pop((f"{name}_sum", labels)) == point["sum"]
            total = 0
            bounds = [*map(repr, point["explicitBounds"]), "+Inf"]
            for le, count in zip(bounds, point["bucketCounts"], strict=True):
                total += int(count)
                assert scraped.pop((f"{name}_bucket", labels | {("le", le)})) == total
        else:
            assert scraped.pop((name, labels)) == point["asDouble"]
            monotonic = point["kind"] == "sum" and point["metric"]["sum"]["isMonotonic"]
            assert monotonic == name.endswith("_total")
    assert scraped == {}


def test_each_server_is_a_resource() -> None:
    found = points(documents(*everything()))
    [cut] = found["innoscope_threads_cut", frozenset({("server", "shop")})]
    assert cut["resource"] == {
        "service.name": "innoscope", "db.system.name": "mysql", "server.port": "3306",
    }  # fmt: skip
    [up] = found["innoscope_sensor_up", frozenset()]
    assert up["resource"]["service.instance.id"] == "db1"


def test_counters_start_at_their_first_value_and_again_after_a_decrease() -> None:
    starts = StartTimes()
    times = []
    for step, value in enumerate((5, 5, 9, 2, 3)):
        at_ns = T + step
        [[point]] = points(
            documents(series("push_failures", "", ("busy",), value), at_ns=at_ns, starts=starts)
        ).values()
        times.append((int(point["startTimeUnixNano"]) - T, int(point["timeUnixNano"]) - T))
    assert times == [(0, 0), (0, 1), (0, 2), (3, 3), (3, 4)]


def test_values_that_are_not_finite_are_strings() -> None:
    """Compare with the JSON mapping of protobuf, which uses strings because JSON has no such numbers."""
    special = [series("threads_cut", "shop", (), value) for value in (math.nan, math.inf, -math.inf)]
    [document] = documents(*special)
    check(document, "metrics", "metrics")
    [found] = points([document]).values()
    assert [point["asDouble"] for point in found] == ["NaN", "Infinity", "-Infinity"]


def test_many_servers_are_several_requests() -> None:
    many = [series("push_failures", f"s{n % 30}", (str(n),), 1) for n in range(15_000)]
    sizes = [payload.items for payload in otlp_encoding.metrics(many, RESOURCES, T, StartTimes())]
    assert sizes == [10_000, 5_000]


def test_log_record_is_bounded_and_printable() -> None:
    hostile = finding(title="\x1b[31m\u202e" + "x" * 10_000)
    payload = otlp_encoding.logs([hostile, finding("gone")], RESOURCES, T)
    assert payload is not None
    document = json.loads(gzip.decompress(payload.body))
    (first, shop), (_, gone) = records([document])
    assert shop["db.system.name"] == "mysql"
    assert gone == {**RESOURCES[""], "innoscope.server": "gone"}, "a server that the agent has forgotten"
    text = first["body"]["stringValue"]
    assert text.isprintable()
    assert len(text) <= 500
    assert (first["severityNumber"], first["timeUnixNano"]) == (17, "1700000000250000000")
    assert attributes(first) == {"innoscope.score": 80.0}


def test_profile_has_the_stacks_of_the_pprof_profile() -> None:
    chunks = [CHUNK, replace(CHUNK, start=CHUNK.end + 1, end=CHUNK.end + 10)]
    made = otlp_profiles.profile(ServerChunks("shop", target(), chunks), RESOURCES)
    document = json.loads(gzip.decompress(made.body))
    check(document, "profiles", "profiles")
    [found] = profiles([document])
    pushed = pprofile.parse(queued_profile("shop", target(), chunks).pprof)
    assert found.sample_type == pushed.sample_type
    assert found.by_attribute("innoscope.wait") == pushed.by_label("wait") == {"idle": 60, "row_lock": 24}
    assert found.by_attribute("innoscope.trust") == pushed.by_label("trust") == {"torn": 24}
    idle = tuple(frame.label for frame in IDLE)
    assert found.counts[idle, frozenset({("innoscope.wait", "idle")})] == 60
    assert found.start_ns == int(CHUNK.start * 1000) * 10**6
    assert found.duration_ns == int((CHUNK.end + 10 - CHUNK.start) * 1000) * 10**6
    assert found.resource["db.system.name"] == "mysql"


# ── sending ─────────────────────────────────────────────────────────────────────────────────────────────


def test_metrics_are_sent_each_interval_and_records_at_once() -> None:
    with OtlpReceiver() as there:
        world = World(there, interval_seconds=60, headers={"X-Scope-OrgID": "dba"})
        world.exporter.log([finding()])
        world.run(1)
        assert world.sent == ["/v1/logs"]
        world.run(200)
    assert there.complaints == []
    assert len(there.signals["metrics"]) == 4
    assert there.headers[0]["X-Scope-OrgID"] == "dba"
    [[*values]] = points(there.signals["metrics"]).values()
    assert [point["asDouble"] for point in values] == [1, 2, 3, 4]
    assert len({point["startTimeUnixNano"] for point in values}) == 1
    assert world.count("otlp_items", "metrics", "sent") == 4
    assert world.count("otlp_items", "logs", "sent") == 1
    assert world.count("otlp_last_success_timestamp_seconds") > 0


def test_profiles_are_sent_each_interval_if_enabled() -> None:
    with OtlpReceiver() as there:
        for profiles_enabled in (False, True):
            world = World(there, metrics=False, logs=False, profiles=profiles_enabled, interval_seconds=60)
            for step in range(12):
                start = WALL + 10 * step
                world.exporter.take("shop", target(), [replace(CHUNK, start=start, end=start + 9)])
                world.run(10)
            world.run(60)
    assert there.complaints == []
    found = profiles(there.signals["profiles"])
    assert sum(sum(one.counts.values()) for one in found) == 12 * 42
    assert len(found) in (2, 3)
    assert world.count("otlp_items", "profiles", "sent") == len(found)


def test_disabled_signal_is_neither_sent_nor_counted() -> None:
    with OtlpReceiver() as there:
        world = World(there, metrics=False)
        world.exporter.log([finding()])
        world.run(200)
    assert world.sent == ["/v1/logs"]
    items = [one for one in world.exporter.samples() if one.metric == "otlp_items"]
    assert {one.labels[0] for one in items} == {"logs"}


@pytest.mark.parametrize("status", [429, 502, 503, 504])
def test_request_is_repeated_after_the_requested_time(status: int) -> None:
    with OtlpReceiver() as there:
        there.faults.append(faults.status(status, headers={"Retry-After": "25"}))
        world = World(there, metrics=False)
        world.exporter.log([finding()])
        world.run(100)
    first, second = world.attempts
    assert second - first == pytest.approx(25, abs=1)
    assert world.count("otlp_items", "logs", "sent") == 1


@pytest.mark.parametrize("status", [400, 401, 404, 408, 413, 500, 501])
def test_other_statuses_are_not_retried(status: int) -> None:
    with OtlpReceiver() as there:
        there.faults.append(faults.status(status))
        world = World(there, interval_seconds=60)
        world.run(30)
        assert len(world.attempts) == 1
        world.run(50)
    assert world.count("otlp_items", "metrics", "refused") == 1
    assert world.count("otlp_items", "metrics", "sent") == 1
    [[point]] = points(there.signals["metrics"]).values()
    assert point["startTimeUnixNano"] == point["timeUnixNano"], "the first value was lost"


def test_remaining_records_are_sent_at_the_end() -> None:
    with OtlpReceiver() as there:
        world = World(there)
        world.exporter.log([finding()])
        world.exporter.end()
        world.exporter.run()
    assert world.sent == ["/v1/logs"]


# ── settings ────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('attributes = { "service.name" = "x" }', "set by the agent"),
        ('attributes = { "Bad Name" = "x" }', "not a valid name"),
        ('attributes = { "a.b" = "" }', "empty"),
        ('headers = { Content-Encoding = "x" }', "set by the agent"),
        ("interval_seconds = 1", "interval_seconds"),
    ],
)
def test_invalid_settings(text: str, words: str, tmp_path: Path) -> None:
    file = tmp_path / "otlp.toml"
    file.write_text(text)
    with pytest.raises(BadFile, match=words):
        schema.read_toml(file, Otlp)
