"""Build the request that reports an incident, in the receiver's format.

Alertmanager: the body that Alertmanager itself sends to webhooks (``webhook_config`` in its documentation,
version 4), so that receivers of its notifications also understand these. Slack: the ``text`` of an incoming
webhook (api.slack.com/messaging/webhooks); Mattermost, Rocket.Chat and others accept it too.
"""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from innoscope.common import sanitize
from innoscope.daemon.push.formats import PushRequest

if TYPE_CHECKING:
    from innoscope.daemon.push.settings import Notify

#: Maximum number of characters of each text.
_MAX_WORDS: Final = 500
_ALERT: Final = "InnoscopeIncident"
#: The end of an alert that has not ended, as Alertmanager writes it.
_NO_END: Final = "0001-01-01T00:00:00Z"
_SLACK_ESCAPES: Final = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;"})


@dataclass(frozen=True, slots=True)
class Incident:
    """A stall that was captured in an incident file. ``at`` is the Unix time of its start.

    ``finding`` and ``title`` describe the worst finding, and ``blocker`` describes what blocks most threads;
    None if there is none.
    """

    file: str
    server: str
    at: float
    trigger: str
    finding: str | None
    title: str | None
    blocker: str | None


def request(incident: Incident, notify: Notify, instance: str, page_url: str) -> PushRequest:
    """Return the request that reports an incident. ``instance`` is this host's name."""
    link = f"{page_url}/api/incidents?file={quote(incident.file)}"
    document = {"alertmanager": _alertmanager, "slack": _slack}[notify.format](incident, instance, link)
    return PushRequest(notify.target.path or "/", "application/json", sanitize.dumps(document).encode())


def _alertmanager(incident: Incident, instance: str, link: str) -> dict[str, object]:
    labels = {
        "alertname": _ALERT,
        "server": _clean(incident.server),
        "instance": instance,
        "finding": incident.finding or "none",
        "severity": "warning",
    }
    annotations = {
        "summary": _summary(incident),
        "description": _description(incident),
        "incident": link,
        "command": f"innoscope diagnose {incident.file}",
    }
    began = datetime.datetime.fromtimestamp(incident.at, datetime.UTC)
    alert = {
        "status": "firing",
        "labels": labels,
        "annotations": annotations,
        "startsAt": began.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "endsAt": _NO_END,
        "generatorURL": link,
    }
    return {
        "version": "4",
        "groupKey": incident.file,
        "truncatedAlerts": 0,
        "status": "firing",
        "receiver": "innoscope",
        "groupLabels": {"alertname": _ALERT},
        "commonLabels": labels,
        "commonAnnotations": annotations,
        "externalURL": link,
        "alerts": [alert],
    }


def _slack(incident: Incident, instance: str, link: str) -> dict[str, object]:
    lines = (
        f"*{_escaped(_clean(incident.server))}* on {_escaped(instance)}: {_escaped(_summary(incident))}",
        _escaped(_description(incident)),
        f"<{link}|{_escaped(incident.file)}>: `innoscope diagnose` shows the details",
    )
    return {"text": "\n".join(lines)}


def _summary(incident: Incident) -> str:
    return _clean(incident.title or f"a stall was captured: {incident.trigger}")


def _description(incident: Incident) -> str:
    trigger = f"trigger: {incident.trigger}"
    return _clean(f"blocker: {incident.blocker}; {trigger}" if incident.blocker else trigger)


def _clean(text: str) -> str:
    return sanitize.words(text, _MAX_WORDS)


def _escaped(text: str) -> str:
    return text.translate(_SLACK_ESCAPES)
