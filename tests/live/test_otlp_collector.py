"""A real OpenTelemetry Collector receives all metrics, log records and profiles of a server with a stall."""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pprofile
from otlp_collector import Collector
from otlp_receiver import OtlpReceiver, attributes, points, profiles, records
from safety.agenting import Running
from safety.sensing import Sensing
from scale import long
from servers import Server
from workloads import RowLock

if TYPE_CHECKING:
    from pathlib import Path

    from otlp_receiver import OtlpProfile
    from safety.agenting import Scrape

WITHIN_S = 120
EVERY_S = 10
SERVER = "under test"

Point = tuple[str, tuple[tuple[str, str], ...]]


def exported(requests: list[dict[str, Any]]) -> dict[Point, list[float]]:
    """Return the values as /metrics names them, without the buckets and sums of histograms."""
    found = {}
    for (name, labels), values in points(requests).items():
        rest = tuple(sorted((key, value) for key, value in labels if key != "server"))
        if values[0]["kind"] == "histogram":
            found[f"{name}_count", rest] = [float(point["count"]) for point in values]
        else:
            found[name, rest] = [float(point["asDouble"]) for point in values]
    return found


def compared(scrape: Scrape) -> dict[Point, float]:
    """Return the values of a scrape without those that ``exported`` omits."""
    buckets = {name for name, _ in scrape.values if name.endswith("_bucket")}
    omitted = buckets | {f"{name.removesuffix('_bucket')}_sum" for name in buckets}
    return {key: value for key, value in scrape.values.items() if key[0] not in omitted}


def times(requests: list[dict[str, Any]], name: str) -> list[int]:
    """Return the timestamps of the metric's points in seconds, in the order of arrival."""
    every = points(requests).items()
    return [int(point["timeUnixNano"]) // 10**9 for (one, _), got in every if one == name for point in got]


@long("tests/unit/test_otlp.py checks messages and retries with a simulated receiver")
def test_collector_passes_on_all_signals(folder: Path) -> None:
    with ExitStack() as stack:
        store = stack.enter_context(OtlpReceiver(strict=False))
        collector = stack.enter_context(Collector(folder, store.url))
        server = stack.enter_context(Server("mysql-5.6.24"))
        sensing = stack.enter_context(Sensing("--no-probes", only=[server]))
        options = (
            f'[otlp]\nurl = "{collector.url}"\ninterval_seconds = {EVERY_S}\nprofiles = true',
            'attributes = { "service.instance.id" = "db1:9977" }',
            f'[watch]\ntriggers = ["share.row_lock>0.3"]\ndirectory = "{folder}/stalls"',
            "seconds = 3\nbefore_seconds = 5",
        )
        agent = stack.enter_context(Running(server, sensor=sensing.path, options=options))
        stack.enter_context(RowLock(server, 10))
        metrics, logs = store.signals["metrics"], store.signals["logs"]
        events = ("innoscope.finding", "innoscope.incident")
        store.until(lambda: {one["eventName"] for one, _ in records(logs)} >= set(events), WITHIN_S)

        before = compared(agent.scrape())
        seen = len(metrics)
        store.until(lambda: len(metrics) >= seen + 2, WITHIN_S)
        after = compared(agent.scrape())
        collector.kill()
        agent.until(lambda scrape: (scrape.value("otlp_queue_bytes") or 0) > 0, WITHIN_S)
        collector.start()
        agent.until(lambda scrape: scrape.value("otlp_queue_bytes") == 0, WITHIN_S)
        seen = len(metrics)
        store.until(lambda: len(metrics) > seen, WITHIN_S)
        final = agent.scrape()
        pushed = profiles(store.signals["profiles"])
        served = _served(agent, pushed)
        log = collector.log

    assert store.complaints == []
    got = exported(metrics)
    stable = before.keys() & after.keys()
    print(f"{len(got)} series over OTLP, {len(stable)} in two scrapes, {len(metrics)} requests with metrics")
    assert len(stable) > 250
    assert stable - got.keys() == set()
    wrong = [
        key
        for key in stable
        if key[0].endswith("_total") and not any(before[key] <= value <= after[key] for value in got[key])
    ]
    assert wrong == []
    sent = times(metrics, "innoscope_sensor_up")
    gaps = [later - earlier for earlier, later in pairwise(sent)]
    print(f"seconds between the points, including an outage: {gaps}")
    assert max(gaps) < 2 * EVERY_S  # a scrape is reused if it is at most half an interval old
    assert final.value("otlp_items_total", signal="metrics", outcome="dropped") == 0
    assert final.value("otlp_items_total", signal="metrics", outcome="refused") == 0
    _check_records(logs)
    by_wait = sum((one.by_attribute("innoscope.wait") for one in pushed), start=Counter[str]())
    print(f"{len(pushed)} profiles with {by_wait.total()} threads")
    assert by_wait == served.by_label("wait")
    assert by_wait["row_lock"] > 10
    assert all(one.resource["innoscope.server"] == SERVER for one in pushed)
    assert "error" not in log.lower().replace("error_message", ""), log


def _served(agent: Running, pushed: list[OtlpProfile]) -> pprofile.Profile:
    """Return the profile that the agent serves for the time of these profiles."""
    begin = min(one.start_ns for one in pushed) / 1e9
    end = max(one.start_ns + one.duration_ns for one in pushed) / 1e9
    status, body = agent.get(f"/api/stacks?format=pprof&from={begin - 0.001:.3f}&to={end + 0.001:.3f}")
    assert status == 200
    return pprofile.parse(body)


def _check_records(logs: list[dict[str, Any]]) -> None:
    """Check the records of the finding and of the incident."""
    for event in ("innoscope.finding", "innoscope.incident"):
        found = [
            (record, resource)
            for record, resource in records(logs)
            if record["eventName"] == event
            and attributes(record).get("innoscope.finding") == "row_lock_convoy"
        ]
        [(record, resource)] = found
        print(record)
        about = attributes(record)
        assert about["innoscope.score"] > 50
        assert resource["innoscope.server"] == SERVER
        assert resource["db.system.name"] == "mysql"
        assert resource["service.instance.id"] == "db1:9977"
        assert record["severityNumber"] in (13, 17)
        if event == "innoscope.incident":
            assert about["innoscope.incident.file"].endswith(".innoscope")
            assert about["innoscope.blocker"]
