"""Captured incidents are reported to a webhook once and in its format, even after failures and restarts."""

from __future__ import annotations

import json
import os
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from innoscope.daemon.agent.config import Config, Watch
from innoscope.daemon.agent.incidents import Incidents
from innoscope.daemon.agent.notifier import Notifier
from innoscope.daemon.push.notifications import IncidentNotice, request
from innoscope.daemon.push.settings import Notify
from webhook import Webhook

if TYPE_CHECKING:
    from pathlib import Path

PAGE = "http://db1:9977"
INCIDENT = IncidentNotice(
    file="stall-mysql-1-20260101T000000Z.innoscope",
    server="orders",
    at=1_767_225_600.5,
    trigger="share.row_lock>0.5 (0.94)",
    finding="row_lock_convoy",
    title="10 threads wait for row locks",
    blocker="connection 17 of app@web1, idle in a transaction for 40 s",
)
FILE = f"{PAGE}/api/incidents?file={INCIDENT.file}"


def body(incident: IncidentNotice, **settings: Any) -> Any:
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
    assert first == "`orders` on `db1`: `10 threads wait for row locks`"
    blocker = "connection 17 of app\uff20web1, idle in a transaction for 40 s"
    assert second == f"`blocker: {blocker}; trigger: share.row_lock&gt;0.5 (0.94)`"
    assert third == f"<{FILE}|incident file>: `innoscope diagnose {INCIDENT.file}` shows the details"


HOSTILE = (
    "\n@channel @all<!here> <@U1> [click](http://evil) ![x](http://evil) <http://evil|x> `@here` & > *b*"
)


@pytest.mark.parametrize("field", ["server", "trigger", "finding", "title", "blocker", "file"])
def test_names_do_not_mention_people_or_become_links_in_chats(field: str) -> None:
    """Check that text from a server is in inline code, without characters that chats interpret even there."""
    changes = {field: HOSTILE, **({"title": None} if field == "trigger" else {})}
    text = body(replace(INCIDENT, **changes), format="slack")["text"]  # type: ignore[arg-type]
    assert len(text.split("\n")) == 3
    assert "@" not in text
    outside = text.split("`")[::2]
    link = re.escape(f"<{PAGE}/api/incidents?file=") + r"[\w%.-]+\|incident file>"
    assert re.fullmatch(rf" on : \n\n{link}:  shows the details", "".join(outside))
    for code in text.split("`")[1::2]:
        assert not set("<>") & set(code)


@pytest.mark.parametrize("field", ["server", "trigger", "finding", "title", "blocker", "file"])
def test_all_texts_for_alertmanagers_receivers_are_sanitized(field: str) -> None:
    changes = {field: "a\x1b[2J\u202e\n" + "x" * 10_000, **({"title": None} if field == "trigger" else {})}
    document = body(replace(INCIDENT, **changes))  # type: ignore[arg-type]
    for text in (*document["alerts"][0]["labels"].values(), *document["alerts"][0]["annotations"].values()):
        assert text.isprintable()
        assert len(text) < 600 or text.startswith(PAGE)


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
    """Write incident files, and an index in which their notifications are due; return the configuration."""
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
        assert _counts(first) == {"sent": 0, "failed": 2, "refused": 0, "dropped": 0}

        second = _notifier(watch, webhook)
        second.step()
        second.step()
        assert _counts(second) == {"sent": 1, "failed": 0, "refused": 0, "dropped": 0}
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
        assert _counts(notifier) == {"sent": 1, "failed": 0, "refused": 1, "dropped": 0}
        assert len(webhook.received) == 1


def test_report_that_keeps_failing_does_not_block_the_others(tmp_path: Path) -> None:
    names = [f"stall-mysql-1-20260101T000{number}00Z.innoscope" for number in range(3)]
    watch = _folder_with(tmp_path, *names)
    for number, name in enumerate(names):
        os.utime(tmp_path / name, (number, number))
    with Webhook([500, 200, 200, 500]) as webhook:
        notifier = _notifier(watch, webhook)
        assert notifier.step() == 1.0
        assert notifier.step() == 1.0
        assert _counts(notifier) == {"sent": 2, "failed": 2, "refused": 0, "dropped": 0}
        assert [incident.file for incident in Incidents(watch).due()] == names[:1]


def test_incidents_deleted_before_the_report_are_counted(tmp_path: Path) -> None:
    watch = _folder_with(tmp_path, INCIDENT.file)
    with Webhook([503]) as webhook:
        notifier = _notifier(watch, webhook)
        notifier.step()
        (tmp_path / INCIDENT.file).unlink()
        notifier.step()
        notifier.step()
        assert _counts(notifier) == {"sent": 0, "failed": 1, "refused": 0, "dropped": 1}


def test_notifications_need_triggers() -> None:
    with pytest.raises(ValueError, match=r"watch\.triggers"):
        Config(notify=Notify(url="http://receiver"))
    Config(notify=Notify(url="http://receiver"), watch=Watch(triggers=("threads_running>5",)))
