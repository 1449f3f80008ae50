"""The thread that pushes profiles, after merging snapshots into one profile per server and interval."""

from __future__ import annotations

import logging
import random
import socket
import threading
import time
from typing import TYPE_CHECKING, Final, Protocol

from innoscope.daemon.push.client import PushClient
from innoscope.daemon.push.errors import PushFailed
from innoscope.daemon.push.formats import push_request
from innoscope.daemon.push.profile_merger import ProfileMerger
from innoscope.daemon.push.queue import BoundedQueue, QueuedProfile
from innoscope.sampling.profile_history import merged, report
from innoscope.sampling.render.pprof import encode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from innoscope.common.supervision import Beat
    from innoscope.daemon.push.formats import PushRequest
    from innoscope.daemon.push.settings import Push
    from innoscope.metrics.collectors.own import Pushes
    from innoscope.sampling.profile_history import Chunk
    from innoscope.target.model import Target

_log = logging.getLogger(__name__)

#: Pause after the first failure, in seconds. It doubles with each failure, and up to half of it is random.
_FIRST_WAIT_S: Final = 1.0
#: Maximum pause after a failure, in seconds, unless the receiver requests a longer one.
_MAX_WAIT_S: Final = 60.0
#: Seconds allowed for sending the remaining profiles before the agent exits.
_LAST_S: Final = 2.0
#: A profile is dropped after this many responses with status 500.
_MAX_ERRORS: Final = 30
#: Maximum seconds between checks for work, so that the first profile of a new server is not late.
_SLEEP_S: Final = 5.0
_HANGS_S: Final = 60.0


class Sender(Protocol):
    """The part of ``PushClient`` that the pusher uses."""

    def post(self, request: PushRequest, timeout_s: float | None = None) -> None:
        """Send a profile. Raise PushFailed if the request fails or the receiver does not accept it."""


class Pusher:
    """Merges chunks into profiles and sends them.

    Any thread may call ``take`` and ``end``, which do not wait for the network. Only the pushing thread may
    call ``run`` and ``step``. ``clock`` is monotonic.
    """

    def __init__(
        self,
        push: Push,
        counts: Pushes,
        *,
        sender: Sender | None = None,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        jitter: Callable[[float, float], float] = random.uniform,
    ) -> None:
        self._push, self._counts = push, counts
        self._sender = sender or PushClient(push)
        self._clock, self._wall, self._jitter = clock, wall, jitter
        self._instance = socket.gethostname()
        self._merger = ProfileMerger(push.interval_seconds, clock=clock, wall=wall, jitter=jitter)
        self._queue = BoundedQueue[QueuedProfile](push.memory_bytes)
        self._failures = 0
        self._errors = 0  # responses with status 500 for the oldest profile
        self._not_before = 0.0
        self._wake = threading.Event()
        self._ending = False
        self._beat: Beat = lambda: None

    def take(self, server: str, target: Target, chunks: Iterable[Chunk]) -> None:
        """Add new chunks of a server. ``server`` is the value of the ``server`` label."""
        self._counts.dropped_memory += self._merger.take(server, target, chunks)

    @property
    def hangs_s(self) -> float:
        """Return the seconds without a heartbeat after which ``run`` counts as hung."""
        return _HANGS_S + self._push.interval_seconds + self._push.timeout_seconds

    def run(self, beat: Beat = lambda: None) -> None:
        """Build and send profiles until ``end`` is called."""
        self._beat = beat
        while not self._ending:
            beat()
            try:
                self._wake.wait(self.step())
            except Exception:
                _log.exception("cannot push")
                self._wake.wait(self._push.interval_seconds)
        self._send_remaining()

    def end(self) -> None:
        """Make ``run`` return, after at most one attempt to send each of the remaining profiles."""
        self._ending = True
        self._wake.set()

    def step(self) -> float:
        """Build and send all profiles that are due. Return the seconds until the next step."""
        self._queue_due(self._clock())
        while self._queue and self._clock() >= self._not_before and not self._ending:
            self._beat()
            if not self._attempt():
                break
            self._queue_due(self._clock())
        return self._pause()

    def _pause(self) -> float:
        now = self._clock()
        times = self._merger.times()
        if self._queue:
            times.append(self._not_before)
        return min(max(0.1, min(times, default=now + _SLEEP_S) - now), _SLEEP_S)

    def _queue_due(self, now: float, *, force: bool = False) -> None:
        """Build and queue the profiles that are due, or all profiles if ``force`` is true."""
        for server, target, chunks in self._merger.due(now, force=force):
            dropped = self._queue.put(queued_profile(server, target, chunks))
            self._counts.dropped_memory += len(dropped)
            if dropped:
                self._errors = 0
        self._update_counts()

    def _attempt(self) -> bool:
        """Send the oldest profile. Return whether to continue with the next one."""
        oldest = self._queue.oldest
        assert oldest is not None  # noqa: S101
        try:
            self._sender.post(push_request(oldest, self._push, self._instance))
        except PushFailed as error:
            return self._handle_failure(error)
        self._queue.take()
        self._counts.sent += 1
        self._counts.bytes += len(oldest.pprof)
        self._counts.last_success = self._wall()
        if self._failures:
            _log.info("push recovered", extra={"failures": self._failures, "waiting": len(self._queue)})
        self._failures, self._errors, self._not_before = 0, 0, 0.0
        self._update_counts()
        return True

    def _handle_failure(self, error: PushFailed) -> bool:
        self._counts.failures[error.reason] = self._counts.failures.get(error.reason, 0) + 1
        log = _log.warning if not self._failures or not error.again else _log.debug
        log("push failed", extra={"reason": error.what, "remedy": error.remedy, "again": error.again})
        self._errors += error.reason == "error"
        if not error.again or self._errors >= _MAX_ERRORS:
            self._queue.take()
            self._errors = 0
            self._counts.dropped_refused += 1
            self._update_counts()
            return True
        self._failures += 1
        wait = min(_MAX_WAIT_S, _FIRST_WAIT_S * 2 ** min(self._failures - 1, 10))
        self._not_before = self._clock() + max(self._jitter(wait / 2, wait), error.after_s)
        return False

    def _send_remaining(self) -> None:
        """Send the remaining profiles before the agent exits, until an attempt fails or 2 s have passed."""
        deadline = self._clock() + _LAST_S
        self._queue_due(self._clock(), force=True)
        while (oldest := self._queue.oldest) is not None and (left := deadline - self._clock()) > 0:
            try:
                self._sender.post(push_request(oldest, self._push, self._instance), left)
            except PushFailed as error:
                _log.warning("push failed", extra={"reason": error.what, "lost": len(self._queue)})
                return
            self._queue.take()

    def _update_counts(self) -> None:
        self._counts.queue_bytes = self._queue.bytes


def queued_profile(server: str, target: Target, chunks: list[Chunk]) -> QueuedProfile:
    """Merge chunks into one pprof profile."""
    whole = merged(chunks)
    return QueuedProfile(
        server, target.flavour, target.version_text, whole.start, whole.end, whole.snapshots,
        encode(report(target, whole)),
    )  # fmt: skip
