"""Report captured incidents to a webhook, and retry after failures."""

from __future__ import annotations

import logging
import socket
from collections import Counter
from typing import TYPE_CHECKING, Final

from innoscope.common.samples import Sample
from innoscope.common.supervision import wait
from innoscope.daemon.push.client import HttpSender
from innoscope.daemon.push.errors import PushFailed
from innoscope.daemon.push.notifications import request

if TYPE_CHECKING:
    import threading

    from innoscope.common.supervision import Beat
    from innoscope.daemon.agent.incidents import Incidents
    from innoscope.daemon.push.notifications import IncidentNotice
    from innoscope.daemon.push.settings import Notify

_log = logging.getLogger(__name__)

#: Seconds between searches for new incidents.
_EVERY_S: Final = 1.0
#: Maximum pause after failures, in seconds, unless the receiver requests a longer one. The first pause is
#: ``_EVERY_S``; it doubles after each further failure.
_MAX_PAUSE_S: Final = 60.0
#: ``run`` counts as hung after this many seconds plus the timeout of a request.
HANGS_S: Final = 120.0


class Notifier:
    """Reports incidents, oldest first. Only one thread may call ``run``.

    Incidents with fewer failed attempts are reported first, so that a report that the receiver cannot process
    does not delay the others. The index of the incident files records which incidents have been reported, so
    a restart of the agent or the receiver loses no reports. An incident whose file is deleted before it is
    reported counts as dropped.
    """

    def __init__(self, notify: Notify, incidents: Incidents, page_url: str) -> None:
        self._notify, self._incidents, self._page_url = notify, incidents, page_url
        self._sender = HttpSender(notify, "notify", "the notification")
        self._instance = socket.gethostname()
        self._outcomes = {"sent": 0, "failed": 0, "refused": 0, "dropped": 0}
        self._failures = 0  # since the last success
        self._pending: frozenset[str] = frozenset()
        self._failed: Counter[str] = Counter()  # failed attempts by file

    def run(self, ended: threading.Event, beat: Beat) -> None:
        """Report incidents until ``ended`` is set."""
        pause_s = _EVERY_S
        while not wait(ended, pause_s, beat):
            beat()
            try:
                pause_s = self.step()
            except Exception:
                _log.exception("cannot report incidents")
                pause_s = _MAX_PAUSE_S

    def step(self) -> float:
        """Report all due incidents. Stop at the first failure that must be retried.

        Return the seconds until the next step.
        """
        for incident in self._in_turn():
            try:
                self._sender.post(request(incident, self._notify, self._instance, self._page_url))
            except PushFailed as error:
                extra = {"file": incident.file, "reason": error.what, "remedy": error.remedy}
                _log.warning("cannot report an incident", extra=extra)
                if not error.again:
                    self._settle(incident, "refused")
                    continue
                self._failed[incident.file] += 1
                self._outcomes["failed"] += 1
                self._failures += 1
                return error.pause_s(self._failures, _EVERY_S, _MAX_PAUSE_S)
            self._failures = 0
            self._settle(incident, "sent")
            _log.info("incident reported", extra={"file": incident.file, "server": incident.server})
        return _EVERY_S

    def _in_turn(self) -> list[IncidentNotice]:
        """Return the due incidents, those with the fewest failed attempts first."""
        due = self._incidents.due()
        now = frozenset(incident.file for incident in due)
        if dropped := self._pending - now:
            self._outcomes["dropped"] += len(dropped)
            extra = {"files": len(dropped)}
            _log.warning("incident files were deleted before they were reported", extra=extra)
        self._pending = now
        self._failed = Counter({file: count for file, count in self._failed.items() if file in now})
        return sorted(due, key=lambda incident: self._failed[incident.file])

    def _settle(self, incident: IncidentNotice, outcome: str) -> None:
        """Record that an incident need not be reported again."""
        self._outcomes[outcome] += 1
        self._pending -= {incident.file}
        self._incidents.set_notified(incident.file, outcome)

    def samples(self) -> list[Sample]:
        """Return the number of attempts by outcome; ``dropped`` counts incidents whose file was deleted."""
        return [Sample("notifications", count, (outcome,)) for outcome, count in self._outcomes.items()]
