"""Build the request that reports an incident, in the receiver's format.

Alertmanager: the body that Alertmanager itself sends to webhooks (``webhook_config`` in its documentation,
version 4), so that its receivers also understand these notifications. Slack: the ``text`` of an incoming
webhook (api.slack.com/messaging/webhooks); Mattermost, Rocket.Chat and others accept it too.

The texts may contain names that a hostile server chooses. In Slack's format, they must neither notify people
nor become links:

- Slack interprets sequences in angle brackets, such as ``<!here>``, unless ``&``, ``<`` and ``>`` are escaped
  (api.slack.com/reference/surfaces/formatting). It shows inline code without formatting it.
- Mattermost interprets the same sequences, Markdown and ``@channel``, except in inline code
  (developers.mattermost.com/integrate/slash-commands/slack, app/mention_parser_standard.go).
- Rocket.Chat interprets Markdown, except in inline code, and ``@all``, even in inline code
  (app/mentions/lib/MentionsParser.ts).
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
#: The end time that Alertmanager writes for an alert that is still firing.
_NO_END: Final = "0001-01-01T00:00:00Z"
#: Escapes in Slack's format. U+FF20 looks like an at sign, but mentions nobody.
_SLACK_ESCAPES: Final = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;", "@": "\uff20", "`": "'"})


@dataclass(frozen=True, slots=True)
class IncidentNotice:
    """A stall that was captured in an incident file. ``at`` is the Unix time of its start.

    ``finding`` and ``title`` describe the worst finding, and ``blocker`` describes the first blocker of that
    finding. They are None if there is no finding or blocker.
    """

    file: str
    server: str
    at: float
    trigger: str
    finding: str | None
    title: str | None
    blocker: str | None


def request(incident: IncidentNotice, notify: Notify, instance: str, page_url: str) -> PushRequest:
    """Return the request that reports an incident. ``instance`` is this host's name."""
    link = f"{page_url}/api/incidents?file={quote(incident.file, safe='')}"
    document = {"alertmanager": _alertmanager, "slack": _slack}[notify.format](incident, instance, link)
    return PushRequest(notify.target.path or "/", "application/json", sanitize.dumps(document).encode())


def _alertmanager(incident: IncidentNotice, instance: str, link: str) -> dict[str, object]:
    labels = {
        "alertname": _ALERT,
        "server": _clean(incident.server),
        "instance": _clean(instance),
        "finding": _clean(incident.finding or "none"),
        "severity": "warning",
    }
    annotations = {
        "summary": _clean(_summary(incident)),
        "description": _clean(_description(incident)),
        "incident": link,
        "command": f"innoscope diagnose {_clean(incident.file)}",
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


def _slack(incident: IncidentNotice, instance: str, link: str) -> dict[str, object]:
    lines = (
        f"{_code(incident.server)} on {_code(instance)}: {_code(_summary(incident))}",
        _code(_description(incident)),
        f"<{link}|incident file>: {_code(f'innoscope diagnose {incident.file}')} shows the details",
    )
    return {"text": "\n".join(lines)}


def _summary(incident: IncidentNotice) -> str:
    return incident.title or f"a stall was captured: {incident.trigger}"


def _description(incident: IncidentNotice) -> str:
    trigger = f"trigger: {incident.trigger}"
    return f"blocker: {incident.blocker}; {trigger}" if incident.blocker else trigger


def _clean(text: str) -> str:
    return sanitize.words(text, _MAX_WORDS)


def _code(text: str) -> str:
    """Return the text as inline code of Slack, Mattermost and Rocket.Chat."""
    return f"`{_clean(text).translate(_SLACK_ESCAPES)}`"
