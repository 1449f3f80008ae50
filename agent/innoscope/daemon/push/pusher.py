"""The thread that pushes profiles, after merging snapshots into one profile per server and interval."""

from __future__ import annotations

import logging
import random
import socket
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol

from innoscope.daemon.push.client import PushClient
from innoscope.daemon.push.errors import PushFailed
from innoscope.daemon.push.formats import push_request
from innoscope.daemon.push.queue import ProfileQueue, QueuedProfile
from innoscope.sampling.profile_history import merged, report
from innoscope.sampling.render.pprof import encode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from innoscope.common.supervision import Beat
    from innoscope.daemon.push.formats import PushRequest
    from innoscope.daemon.push.settings import Push
    from innoscope.metrics.collectors.own import Pushes
    from innoscope.sampling.profile_history import Chunk
    from innoscope.target.model import Target

_log = logging.getLogger(__name__)

#: Pause after the first failure, in seconds. It doubles with each failure, and up to half of it is random.
_FIRST_WAIT_S: Final = 1.0
#: Maximum pause after a failure, in seconds.
_MAX_WAIT_S: Final = 60.0
#: Seconds allowed for sending the remaining profiles before the agent exits.
_LAST_S: Final = 2.0
#: Maximum number of one server's chunks waiting to be merged. The sensor may send an hour of them at once.
_MAX_CHUNKS: Final = 400
#: Maximum number of intervals that a profile covers.
_MAX_INTERVALS: Final = 1.5
#: A profile is dropped after this many responses with status 500.
_MAX_ERRORS: Final = 30
#: Maximum seconds between two checks for work, so that the first profile of a new server is not late.
_SLEEP_S: Final = 5.0
_HANGS_S: Final = 60.0


#: A chunk, and the target of its server when the chunk was recorded.
TargetChunk = tuple["Target", "Chunk"]


class Sender(Protocol):
    """The part of ``PushClient`` that the pusher uses."""

    def post(self, request: PushRequest, timeout_s: float | None = None) -> None:
        """Send a profile. Raise PushFailed if the receiver does not accept it."""


@dataclass(slots=True)
class _Pending:
    """Chunks of one server to be merged into a profile, and the monotonic time when the profile is due."""

    due: float
    chunks: list[TargetChunk] = field(default_factory=list)


class Pusher:
    """Merges chunks into profiles and sends them. ``take`` is thread-safe and never waits for the network.

    Only the pushing thread may call the other methods. ``clock`` is monotonic. Chunks recorded before
    this agent started are not sent, because the previous agent sent them.
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
        self._since = wall()
        self._lock = threading.Lock()
        self._pending: dict[str, _Pending] = {}
        self._queue = ProfileQueue(push.memory_bytes)
        self._failures = 0
        self._errors = 0  # responses with status 500 for the oldest profile
        self._not_before = 0.0
        self._wake = threading.Event()
        self._ending = False
        self._beat: Beat = lambda: None

    def take(self, server: str, target: Target, chunks: Iterable[Chunk]) -> None:
        """Add new chunks of a server. ``server`` is the value of the label ``server``."""
        new = [chunk for chunk in chunks if chunk.end >= self._since]
        if not new:
            return
        with self._lock:
            pending = self._pending.get(server)
            if pending is None:
                # jitter, so that agents started at the same time do not push at the same time
                due = self._clock() + self._push.interval_seconds * self._jitter(0.5, 1.0)
                pending = self._pending[server] = _Pending(due)
            pending.chunks += [(target, chunk) for chunk in new]
            self._counts.dropped_memory += len(pending.chunks[:-_MAX_CHUNKS])
            del pending.chunks[:-_MAX_CHUNKS]

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
        """Make ``run`` return, after one attempt to send the remaining profiles."""
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
        with self._lock:
            times = [pending.due for pending in self._pending.values()]
        if self._queue:
            times.append(self._not_before)
        return min(max(0.1, min(times, default=now + _SLEEP_S) - now), _SLEEP_S)

    def _queue_due(self, now: float, *, force: bool = False) -> None:
        """Build and queue the profiles that are due, or all profiles if ``force`` is true."""
        with self._lock:
            ready = [
                (name, pending.chunks)
                for name, pending in self._pending.items()
                if force or pending.due <= now
            ]
            for name, new_chunks in ready:
                pending = self._pending[name]
                pending.due, pending.chunks = now + self._push.interval_seconds, []
                if not new_chunks:
                    del self._pending[name]  # the server exited, or the sensor no longer reports it
        for name, new_chunks in ready:
            for target, chunks in _split(new_chunks, _MAX_INTERVALS * self._push.interval_seconds):
                self._queue.put(queued_profile(name, target, chunks))
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
        """Send the remaining profiles before the agent exits: one attempt each, within 2 s in total."""
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
        self._counts.dropped_memory += self._queue.dropped
        self._queue.dropped = 0
        self._counts.queue_bytes = self._queue.bytes


def _split(new_chunks: list[TargetChunk], max_s: float) -> Iterator[tuple[Target, list[Chunk]]]:
    """Split chunks into groups that cover at most ``max_s`` seconds and a single server version."""
    chunks: list[Chunk] = []
    before: Target | None = None
    for target, chunk in new_chunks:
        if before is not None and (
            chunk.end - chunks[0].start > max_s
            or (before.flavour, before.version_text) != (target.flavour, target.version_text)
        ):
            yield before, chunks
            chunks = []
        before = target
        chunks.append(chunk)
    if before is not None:
        yield before, chunks


def queued_profile(server: str, target: Target, chunks: list[Chunk]) -> QueuedProfile:
    """Merge chunks into one pprof profile."""
    whole = merged(chunks)
    return QueuedProfile(
        server, target.flavour, target.version_text, whole.start, whole.end, whole.snapshots,
        encode(report(target, whole)),
    )  # fmt: skip
