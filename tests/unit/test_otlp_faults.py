"""Requests to a failing OTLP receiver are repeated from a queue of bounded size, and losses are counted."""

from __future__ import annotations

from typing import Any

import pytest

import receiver as faults
from innoscope.daemon.push.errors import REASONS, PushFailed
from innoscope.daemon.push.otlp import OUTCOMES, OtlpSender, partial_success
from innoscope.daemon.push.otlp_encoding import OtlpPayload
from innoscope.daemon.push.settings import Otlp
from innoscope.metrics import registry
from otlp_receiver import OtlpReceiver, points, records
from unit.otlp_exporter import World, finding


def test_receiver_that_is_down_for_an_hour_gets_everything_later_and_in_order() -> None:
    with OtlpReceiver() as there:
        world = World(there, interval_seconds=60)
        with there.pausing(faults.status(503)):
            world.run(3600)
        assert world.count("otlp_queue_bytes") > 60 * 200
        assert 60 <= len(world.attempts) < 80
        world.run(120)
    [[*values]] = points(there.signals["metrics"]).values()
    assert [point["asDouble"] for point in values] == list(range(1, 63))
    assert world.count("otlp_queue_bytes") == 0
    assert world.count("otlp_failures", "unavailable") > 50


def test_queue_is_bounded_and_drops_the_oldest() -> None:
    with OtlpReceiver() as there:
        world = World(there, interval_seconds=10, memory_bytes=65_536)
        with there.pausing(faults.status(503)):
            world.run(3600)
        assert world.count("otlp_queue_bytes") <= 65_536
        world.run(120)
    dropped = world.count("otlp_items", "metrics", "dropped")
    assert dropped > 100
    [[first, *_]] = points(there.signals["metrics"]).values()
    assert first["asDouble"] == dropped + 1


def test_partial_success_is_counted_and_not_repeated() -> None:
    with OtlpReceiver() as there:
        there.answers["logs"] = (
            b'{"partialSuccess":{"rejectedLogRecords":"2","errorMessage":"too \\u001b old"}}'
        )
        world = World(there, metrics=False)
        world.exporter.log([finding(), finding(), finding()])
        world.run(60)
    assert len(world.attempts) == 1
    assert world.count("otlp_items", "logs", "rejected") == 2
    assert world.count("otlp_items", "logs", "sent") == 1


@pytest.mark.parametrize(
    ("body", "rejected"),
    [
        (b"", 0), (b"{}", 0), (b"[1]", 0), (b"\xff", 0), (b'{"partialSuccess":7}', 0),
        (b'{"partialSuccess":{"rejectedDataPoints":3}}', 3),
        (b'{"partialSuccess":{"rejectedDataPoints":"99"}}', 5),
        (b'{"partialSuccess":{"rejectedDataPoints":"-1"}}', 0),
        (b'{"partialSuccess":{"rejectedDataPoints":{"a":1}}}', 0),
    ],
)  # fmt: skip
def test_responses_are_untrusted(body: bytes, rejected: int) -> None:
    assert partial_success(body, OtlpPayload("metrics", 5, b""))[0] == rejected


@pytest.mark.parametrize("fault", [faults.silent, faults.trickled_status, faults.reset, faults.hung_up])
def test_broken_receiver_is_a_failure_to_retry(fault: Any) -> None:
    with OtlpReceiver() as there:
        there.faults.append(fault)
        world = World(there, metrics=False, timeout_seconds=1)
        world.exporter.log([finding()])
        world.run(20)
    assert len(world.attempts) == 2
    assert world.count("otlp_items", "logs", "sent") == 1


def test_receiver_that_is_not_one_of_otlp_is_reported() -> None:
    def website(handler: faults.Handler) -> None:
        handler.body()
        handler.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 4\r\n\r\n<p/>")

    with OtlpReceiver() as there:
        there.faults.append(website)
        with pytest.raises(PushFailed) as caught:
            OtlpSender(Otlp(url=there.url)).post(World(there).exporter._request(OtlpPayload("logs", 1, b"")))
    assert (caught.value.reason, caught.value.again) == ("protocol", False)


def test_too_many_records_drop_the_oldest() -> None:
    with OtlpReceiver() as there:
        world = World(there, metrics=False)
        world.exporter.log(finding(title=str(number)) for number in range(1_200))
        world.run(1)
    assert world.count("otlp_items", "logs", "dropped") == 200
    assert records(there.signals["logs"])[0][0]["body"] == {"stringValue": "200"}


def test_every_metric_is_declared() -> None:
    declared = registry.default()
    with OtlpReceiver() as there:
        found = World(there).exporter.samples()
    for sample in found:
        allowed = [label.values for label in declared[sample.metric].labels]
        assert all(value in (values or ()) for value, values in zip(sample.labels, allowed, strict=True))
    assert declared["otlp_failures"].labels[0].values == REASONS
    assert declared["otlp_items"].labels[1].values == OUTCOMES
