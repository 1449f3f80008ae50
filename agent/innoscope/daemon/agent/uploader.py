"""Upload incident files to a store shared by all hosts, and retry after failures."""

from __future__ import annotations

import logging
import socket
import time
from collections import Counter
from typing import TYPE_CHECKING, Final

from innoscope.common.samples import Sample
from innoscope.common.supervision import wait
from innoscope.daemon.push.errors import PushFailed
from innoscope.daemon.push.uploads import request, sender

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable

    from innoscope.common.supervision import Beat
    from innoscope.daemon.agent.incidents import Incidents
    from innoscope.daemon.push.settings import Upload

_log = logging.getLogger(__name__)

#: Seconds between searches for files that have not been uploaded.
_EVERY_S: Final = 5.0
#: Maximum pause after failures, in seconds, unless the receiver requests a longer one. The first pause is
#: ``_EVERY_S``; it doubles after each further failure.
_MAX_PAUSE_S: Final = 60.0
#: Seconds until the next attempt to upload a file that the receiver refused, for example because of missing
#: permissions, or that cannot be read.
_SKIPPED_S: Final = 300.0
#: ``run`` counts as hung after this many seconds plus the timeout of a request.
HANGS_S: Final = 120.0


class Uploader:
    """Uploads incident files: those with the fewest failed attempts first, and of these the oldest first.

    Therefore a file that the receiver cannot process does not delay the others. Only one thread may call
    ``run``. The queue consists of the files in the folder that the index does not mark as
    uploaded, so it is bounded by the limits of the folder and survives restarts. If the index is lost, files
    are uploaded again.
    """

    def __init__(
        self, upload: Upload, incidents: Incidents, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._upload, self._incidents, self._clock = upload, incidents, clock
        self._sender = sender(upload)
        self._host = socket.gethostname()
        self._outcomes = {"sent": 0, "failed": 0, "refused": 0, "dropped": 0}
        self._pending: frozenset[str] = frozenset()
        self._skipped_until: dict[str, float] = {}
        self._failed: Counter[str] = Counter()  # failed attempts by file
        self._failures = 0  # since the last success

    def run(self, ended: threading.Event, beat: Beat) -> None:
        """Upload files until ``ended`` is set."""
        pause_s = _EVERY_S
        while not wait(ended, pause_s, beat):
            try:
                pause_s = self.step(ended, beat)
            except Exception:
                _log.exception("cannot upload incident files")
                pause_s = _MAX_PAUSE_S

    def step(self, ended: threading.Event, beat: Beat) -> float:
        """Upload the pending files. Stop at the first failure that must be retried.

        Return the seconds until the next step.
        """
        names = self._incidents.not_uploaded()
        self._count_dropped(names)
        for name in sorted(names, key=lambda name: self._failed[name]):
            beat()
            if ended.is_set():
                break
            if self._clock() < self._skipped_until.get(name, 0.0):
                continue
            pause_s = self._upload_one(name)
            if pause_s is not None:
                return pause_s
        return _EVERY_S

    def samples(self) -> list[Sample]:
        """Return the number of attempts by outcome (``dropped``: of deleted files), and of pending files."""
        return [
            *(Sample("uploads", count, (outcome,)) for outcome, count in self._outcomes.items()),
            Sample("uploads_pending", len(self._pending)),
        ]

    def _count_dropped(self, names: list[str]) -> None:
        """Count pending files that have been deleted, for example because of the folder's limits."""
        now = frozenset(names)
        dropped = self._pending - now
        if dropped:
            self._outcomes["dropped"] += len(dropped)
            _log.warning(
                "incident files were deleted before they were uploaded", extra={"files": len(dropped)}
            )
        self._pending = now
        self._skipped_until = {name: at for name, at in self._skipped_until.items() if name in now}
        self._failed = Counter({name: count for name, count in self._failed.items() if name in now})

    def _upload_one(self, name: str) -> float | None:
        """Upload a file. If that fails and must be retried, return the pause in seconds, otherwise None."""
        try:
            body = self._incidents.read(name)
        except OSError as error:
            extra = {"file": name, "error": error.strerror}
            _log.warning("cannot read an incident file", extra=extra)
            self._outcomes["failed"] += 1
            self._skipped_until[name] = self._clock() + _SKIPPED_S
            return None
        if body is None:  # deleted since the search: the next step counts it
            return None
        try:
            self._sender.post(request(self._upload, self._host, name, body))
        except PushFailed as error:
            extra = {"file": name, "reason": error.what, "remedy": error.remedy}
            _log.warning("cannot upload an incident file", extra=extra)
            if not error.again:
                self._outcomes["refused"] += 1
                self._skipped_until[name] = self._clock() + _SKIPPED_S
                return None
            self._failed[name] += 1
            self._outcomes["failed"] += 1
            self._failures += 1
            return error.pause_s(self._failures, _EVERY_S, _MAX_PAUSE_S)
        self._outcomes["sent"] += 1
        self._failures = 0
        self._pending -= {name}
        self._incidents.set_uploaded(name)
        _log.info("incident file uploaded", extra={"file": name, "bytes": len(body)})
        return None
