"""Captured incidents are reported to a webhook once and in its format, even after failures and restarts."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from innoscope.daemon.agent.config import Config, Watch
from innoscope.daemon.agent.incidents import Incidents
from innoscope.daemon.agent.notifier import Notifier
from innoscope.daemon.push.notifications import Incident, request
from innoscope.daemon.push.settings import Notify
from webhook import Webhook

if TYPE_CHECKING:
    from pathlib import Path

PAGE = "http://db1:9977"
INCIDENT = Incident(
    file="stall-mysql-1-20260101T000000Z.innoscope",
    server="orders",
    at=1_767_225_600.5,
    trigger="share.row_lock>0.5 (0.94)",
    finding="row_lock_convoy",
    title="10 threads wait for row locks",
    blocker="connection 17 of app@web1, idle in a transaction for 40 s",
)
FILE = f"{PAGE}/api/incidents?file={INCIDENT.file}"


def body(incident: Incident, **settings: Any) -> Any:
    return json.loads(request(incident, Notify(url="http://receiver/hook", **settings), "db1", PAGE).body)


def test_alertmanagers_format() -> None:
    document = body(INCIDENT)
    assert document["version"] == "4"
    [alert] = document["alerts"]
    assert alert["status"] == document["status"] == "firing"
    assert alert["labels"] == {
        "alertname": "InnoscopeIncident", "server": "orders", "instance": "db1",
        "finding": "row_lock_convoy", "severity": "warning",
    }  # fmt: skip
    assert alert["annotations"] == {
        "summary": INCIDENT.title,
        "description": f"blocker: {INCIDENT.blocker}; trigger: {INCIDENT.trigger}",
        "incident": FILE,
        "command": f"innoscope diagnose {INCIDENT.file}",
    }
    assert alert["startsAt"] == "2026-01-01T00:00:00.500Z"
    assert alert["generatorURL"] == FILE


def test_slacks_format() -> None:
    first, second, third = body(INCIDENT, format="slack")["text"].split("\n")
    assert first == "*orders* on db1: 10 threads wait for row locks"
    assert second == f"blocker: {INCIDENT.blocker}; trigger: share.row_lock&gt;0.5 (0.94)"
    assert third.startswith(f"<{FILE}|{INCIDENT.file}>")


def test_incident_without_a_finding() -> None:
    [alert] = body(replace(INCIDENT, finding=None, title=None, blocker=None))["alerts"]
    assert alert["labels"]["finding"] == "none"
    assert alert["annotations"]["summary"] == f"a stall was captured: {INCIDENT.trigger}"
    assert alert["annotations"]["description"] == f"trigger: {INCIDENT.trigger}"


@pytest.mark.parametrize("form", ["alertmanager", "slack"])
def test_text_of_others_is_escaped_and_bounded(form: str) -> None:
    hostile = "\x1b[2J<!channel> & \u202e" + "x" * 10_000
    sent = request(
        replace(INCIDENT, server=hostile, blocker=hostile, title=hostile),
        Notify(url="http://receiver/hook", format=form),
        "db1",
        PAGE,
    ).body
    assert len(sent) < 10_000
    text = json.dumps(json.loads(sent), ensure_ascii=False)
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert form != "slack" or "<!channel>" not in text


def _folder_with(folder: Path, *names: str) -> Watch:
    """Write incident files and their index, as an agent that could not report them leaves them."""
    about = {
        name: {
            "server": "orders", "at": INCIDENT.at, "trigger": INCIDENT.trigger, "finding": INCIDENT.finding,
            "title": INCIDENT.title, "score": 88.0, "blocker": INCIDENT.blocker, "notification": "due",
        }
        for name in names
    }  # fmt: skip
    for name in names:
        (folder / name).write_bytes(b"")
    (folder / "incidents.json").write_text(json.dumps(about))
    return Watch(directory=str(folder))


def _notifier(watch: Watch, webhook: Webhook) -> Notifier:
    return Notifier(Notify(url=webhook.url), Incidents(watch, notify=True), PAGE)


def _counts(notifier: Notifier) -> dict[str, float]:
    return {sample.labels[0]: float(str(sample.value)) for sample in notifier.samples()}


def test_failed_reports_are_repeated_and_sent_once_even_by_another_agent(tmp_path: Path) -> None:
    watch = _folder_with(tmp_path, INCIDENT.file)
    with Webhook([503, 503]) as webhook:
        first = _notifier(watch, webhook)
        assert [first.step(), first.step()] == [1.0, 2.0]  # seconds until the next attempt
        assert _counts(first) == {"sent": 0, "failed": 2, "refused": 0}

        second = _notifier(watch, webhook)
        second.step()
        second.step()
        assert _counts(second) == {"sent": 1, "failed": 0, "refused": 0}
        assert _notifier(watch, webhook).step() == 1.0
        assert webhook.requests == 3
        [document] = webhook.received
    assert document["alerts"][0]["annotations"]["incident"] == FILE


def test_refused_report_does_not_delay_the_next_one(tmp_path: Path) -> None:
    names = ["stall-mysql-1-20260101T000000Z.innoscope", "stall-mysql-1-20260101T000100Z.innoscope"]
    watch = _folder_with(tmp_path, *names)
    with Webhook([400]) as webhook:
        notifier = _notifier(watch, webhook)
        notifier.step()
        assert _counts(notifier) == {"sent": 1, "failed": 0, "refused": 1}
        assert len(webhook.received) == 1


def test_notifications_need_triggers() -> None:
    with pytest.raises(ValueError, match=r"watch\.triggers"):
        Config(notify=Notify(url="http://receiver"))
    Config(notify=Notify(url="http://receiver"), watch=Watch(triggers=("threads_running>5",)))
