"""Report captured incidents to a webhook, and retry after failures."""

from __future__ import annotations

import logging
import socket
from typing import TYPE_CHECKING, Final

from innoscope.common.samples import Sample
from innoscope.daemon.push.client import HttpSender
from innoscope.daemon.push.errors import PushFailed
from innoscope.daemon.push.notifications import request

if TYPE_CHECKING:
    import threading

    from innoscope.common.supervision import Beat
    from innoscope.daemon.agent.incidents import Incidents
    from innoscope.daemon.push.settings import Notify

_log = logging.getLogger(__name__)

#: Seconds between two searches for new incidents.
_EVERY_S: Final = 1.0
#: Maximum pause after failures, in seconds. The first pause is ``_EVERY_S``, and each further one is doubled.
_MAX_PAUSE_S: Final = 60.0
#: ``run`` counts as hung after this many seconds plus the timeout of a request.
HANGS_S: Final = 120.0


class Notifier:
    """Reports incidents, oldest first. Only one thread may call ``run``.

    The index of the incident files says which incidents have been reported. Therefore nothing is lost when
    the agent or the receiver restarts, and there are never more pending reports than incident files.
    """

    def __init__(self, notify: Notify, incidents: Incidents, page_url: str) -> None:
        self._notify, self._incidents, self._page_url = notify, incidents, page_url
        self._sender = HttpSender(notify, "notify", "the notification")
        self._instance = socket.gethostname()
        self._outcomes = {"sent": 0, "failed": 0, "refused": 0}
        self._failures = 0  # since the last success

    def run(self, ended: threading.Event, beat: Beat) -> None:
        """Report incidents until ``ended`` is set."""
        pause_s = _EVERY_S
        while not ended.wait(pause_s):
            beat()
            try:
                pause_s = self.step()
            except Exception:
                _log.exception("cannot report incidents")
                pause_s = _MAX_PAUSE_S

    def step(self) -> float:
        """Report all due incidents, until an attempt fails. Return the seconds until the next step."""
        for incident in self._incidents.due():
            try:
                self._sender.post(request(incident, self._notify, self._instance, self._page_url))
            except PushFailed as error:
                extra = {"file": incident.file, "reason": error.what, "remedy": error.remedy}
                _log.warning("cannot report an incident", extra=extra)
                if not error.again:
                    self._outcomes["refused"] += 1
                    self._incidents.set_notified(incident.file, "refused")
                    continue
                self._outcomes["failed"] += 1
                self._failures += 1
                pause_s = min(_MAX_PAUSE_S, _EVERY_S * 2.0 ** min(self._failures - 1, 10))
                return float(max(pause_s, error.after_s))
            self._outcomes["sent"] += 1
            self._failures = 0
            self._incidents.set_notified(incident.file, "sent")
            _log.info("incident reported", extra={"file": incident.file, "server": incident.server})
        return _EVERY_S

    def samples(self) -> list[Sample]:
        """Return the number of attempts by outcome."""
        return [Sample("notifications", count, (outcome,)) for outcome, count in self._outcomes.items()]
