"""Findings that begin and captured incidents become log records, and servers become resources."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from innoscope.daemon.agent import config
from innoscope.daemon.agent.collect import Gatherer
from innoscope.daemon.agent.finding_scores import FindingScores
from innoscope.daemon.agent.otlp_source import NewFindings, OtlpSource, incident_record
from innoscope.daemon.agent.servers import Servers
from innoscope.daemon.protocol.client import SensorClient
from innoscope.daemon.push.settings import Otlp
from innoscope.diagnose.incident.server_facts import ServerFacts
from innoscope.diagnose.verdict import Verdict, WaitingStatement, judge
from innoscope.diagnose.watch.loop import Stalled
from innoscope.diagnose.watch.triggers import parse
from innoscope.metrics import registry
from unit.snapshots import target
from unit.test_agent_recording import NAME, recorders, scrape, sensor, servers

if TYPE_CHECKING:
    from innoscope.daemon.agent.recorder import Recorders
    from innoscope.daemon.push.otlp_encoding import LogRecord
    from innoscope.diagnose.evidence import Evidence

__all__ = ["recorders", "sensor", "servers"]

PAGE = "http://db1:9977"


@pytest.fixture
def evidence(recorders: Recorders) -> Evidence:
    for at in range(960, 1000, 10):
        recorders.add_scrape(at, scrape({"connections_running": 11, "statements": at}))
    recorder = recorders.of(NAME)
    assert recorder is not None
    return recorder.between(970, 1000)


def calm(verdict: Verdict) -> Verdict:
    return replace(verdict, findings=())


def names(records: list[LogRecord]) -> list[Any]:
    return [(record.server, record.attributes["innoscope.finding"]) for record in records]


def test_finding_is_recorded_when_it_begins_and_when_it_returns(evidence: Evidence) -> None:
    bad = judge(evidence)
    new = NewFindings(PAGE)
    first = new.records({NAME: (1000.0, bad)})
    assert (NAME, "row_lock_convoy") in names(first)
    assert new.records({NAME: (1010.0, bad)}) == []
    assert new.records({NAME: (1020.0, calm(bad))}) == []
    assert new.records({NAME: (1050.0, bad)}) == [], "it was absent for less than a minute"
    assert new.records({NAME: (1120.0, calm(bad))}) == []
    assert names(new.records({NAME: (1130.0, bad)})) == names(first)
    assert names(new.records({NAME: (1140.0, bad), "other": (1140.0, bad)})) == [
        ("other", name) for _, name in names(first)
    ]


def test_server_without_a_verdict_is_forgotten(evidence: Evidence) -> None:
    bad = judge(evidence)
    new = NewFindings(PAGE)
    first = new.records({NAME: (1000.0, bad)})
    assert new.records({}) == []
    assert names(new.records({NAME: (1020.0, bad)})) == names(first)


def test_record_has_digests_but_no_statements(evidence: Evidence) -> None:
    verdict = judge(evidence)
    worst = replace(
        verdict.findings[0],
        score=80.0,
        statements=(WaitingStatement("UPDATE secret", "0123456789abcdef", 9),),
    )
    [record] = NewFindings(PAGE).records({NAME: (1000.0, replace(verdict, findings=(worst,)))})
    assert record.title == worst.title
    assert record.urgent
    assert record.attributes["innoscope.digest"] == "0123456789abcdef"
    assert record.attributes["innoscope.link"] == f"{PAGE}/#server={NAME}&show=findings"
    assert "secret" not in str(record)


def test_scores_pass_each_verdict_on(recorders: Recorders, evidence: Evidence) -> None:
    assert evidence.snapshots
    scores = FindingScores(recorders, interval_s=10)
    records: list[LogRecord] = []
    new = NewFindings(PAGE)
    scores.on_verdicts = lambda verdicts: records.extend(new.records(verdicts))
    scores.refresh(1000)
    scores.refresh(1010)
    assert names(records).count((NAME, "row_lock_convoy")) == 1


def test_incident_has_its_finding_and_a_link_to_its_file(evidence: Evidence) -> None:
    verdict = judge(evidence)
    stalled = Stalled(parse("threads_running>5"), 6, evidence, evidence, ServerFacts())
    record = incident_record(PAGE, NAME, "stall a.innoscope", stalled, verdict)
    assert (record.event, record.at) == ("innoscope.incident", evidence.begun)
    assert record.attributes["innoscope.link"] == f"{PAGE}/api/incidents?file=stall%20a.innoscope"
    assert record.attributes["innoscope.trigger"] == "threads_running>5"
    assert record.attributes["innoscope.finding"] == verdict.findings[0].name
    without = incident_record(PAGE, NAME, "stall.innoscope", stalled, calm(verdict))
    assert without.title == "a stall was captured: threads_running>5"
    assert "innoscope.finding" not in without.attributes


def test_resources_describe_local_and_remote_servers() -> None:
    remote = config.Server(name="far", host="db2.example.net", port=3307)
    missing = config.Server(name="down", port=3308)
    found = Servers(config.Config(sql=config.Sql(enabled=False), server=(remote, missing)))
    found.register_from_sensor(NAME, target(pid=os.getpid()))
    gatherer = Gatherer(SensorClient("/nonexistent"), found, registry.default())
    otlp = Otlp(attributes={"host.name": "db1", "service.instance.id": "db1:9977", "cloud.region": "eu"})
    resources = OtlpSource(otlp, gatherer, found).resources()
    assert resources[""].items() >= {
        "service.name": "innoscope", "service.instance.id": "db1:9977", "host.name": "db1",
        "cloud.region": "eu",
    }.items()  # fmt: skip
    assert resources[NAME].items() >= {"db.system.name": "mysql", "server.address": "db1"}.items()
    assert resources["far"].items() >= {
        "server.address": "db2.example.net", "host.name": "db2.example.net", "server.port": 3307,
        "service.instance.id": "db1:9977",
    }.items()  # fmt: skip
    assert resources["down"].items() >= {"server.address": "db1", "server.port": 3308}.items()
    assert resources["down"]["db.system.name"] is None
