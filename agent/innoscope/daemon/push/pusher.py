"""The thread that sends profiles: looks become one profile a server and interval, and go out in order."""

from __future__ import annotations

import logging
import random
import socket
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol

from innoscope.daemon.push.client import Client
from innoscope.daemon.push.errors import PushFailed
from innoscope.daemon.push.formats import posted
from innoscope.daemon.push.queue import Entry, Queue
from innoscope.sampling.profile_history import merged, report
from innoscope.sampling.render.pprof import encode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from innoscope.common.supervision import Beat
    from innoscope.daemon.push.formats import Posted
    from innoscope.daemon.push.settings import Push
    from innoscope.metrics.collectors.own import Pushes
    from innoscope.sampling.profile_history import Chunk
    from innoscope.target.model import Target

_log = logging.getLogger(__name__)

#: Seconds between attempts after failures: doubled each time, and drawn by lot from the upper half.
_FIRST_WAIT: Final = 1.0
_MOST_WAIT: Final = 60.0
#: Seconds for what is left when the agent ends.
_LAST: Final = 2.0
#: Chunks of one server that wait to become profiles: an hour and a bit, should the sensor tell of it at once.
_MOST_CHUNKS: Final = 400
#: Looks of so many intervals become one profile at most, whenever they came.
_LONGEST: Final = 1.5
#: Errors (500) that a receiver may answer to the same profile, before the others get their turn.
_MOST_ERRORS: Final = 30
#: Seconds for which ``step`` may sleep: no less than the first profile of a new server takes to become due.
_SLEEP: Final = 5.0
_HANGS_S: Final = 60.0


#: A chunk, and the server as it was by then.
Look = tuple["Target", "Chunk"]


class Sender(Protocol):
    """What sends: ``innoscope.daemon.push.client.Client``."""

    def post(self, posted: Posted, timeout_s: float | None = None) -> None:
        """Raises PushFailed."""


@dataclass(slots=True)
class _Pending:
    """Looks at one server that no profile has yet, and when (monotonic) they shall become one."""

    due: float
    looks: list[Look] = field(default_factory=list)


class Pusher:
    """``take`` may be called by any thread and never waits for the network; all else is the own thread's.

    ``clock`` is monotonic, ``since`` the Unix time before which looks are not ours to send: an agent that ran
    before us has sent them.
    """

    def __init__(
        self,
        push: Push,
        counts: Pushes,
        *,
        sender: Sender | None = None,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        lot: Callable[[float, float], float] = random.uniform,
    ) -> None:
        self._push, self._counts = push, counts
        self._sender = sender or Client(push)
        self._clock, self._wall, self._lot = clock, wall, lot
        self._instance = socket.gethostname()
        self._since = wall()
        self._lock = threading.Lock()
        self._pending: dict[str, _Pending] = {}
        self._queue = Queue(push.memory_bytes)
        self._failures = 0
        self._errors = 0  # 500s for the oldest
        self._not_before = 0.0
        self._wake = threading.Event()
        self._ending = False
        self._beat: Beat = lambda: None

    def take(self, server: str, target: Target, chunks: Iterable[Chunk]) -> None:
        """Looks that are new; ``server`` is the name that its series have."""
        new = [chunk for chunk in chunks if chunk.end >= self._since]
        if not new:
            return
        with self._lock:
            pending = self._pending.get(server)
            if pending is None:
                # by lot, so that the agents of a fleet that was started at once do not push at once
                due = self._clock() + self._push.interval_seconds * self._lot(0.5, 1.0)
                pending = self._pending[server] = _Pending(due)
            pending.looks += [(target, chunk) for chunk in new]
            self._counts.dropped_memory += len(pending.looks[:-_MOST_CHUNKS])
            del pending.looks[:-_MOST_CHUNKS]

    @property
    def hangs_s(self) -> float:
        """Seconds without a beat after which ``run`` hangs."""
        return _HANGS_S + self._push.interval_seconds + self._push.timeout_seconds

    def run(self, beat: Beat = lambda: None) -> None:
        """Until ``end``."""
        self._beat = beat
        while not self._ending:
            beat()
            try:
                self._wake.wait(self.step())
            except Exception:
                _log.exception("no push")
                self._wake.wait(self._push.interval_seconds)
        self._last()

    def end(self) -> None:
        """Let ``run`` send what is left, once and quickly, and return."""
        self._ending = True
        self._wake.set()

    def step(self) -> float:
        """Do what is to be done now; in how many seconds there will be something again."""
        self._seal(self._clock())
        while self._queue and self._clock() >= self._not_before and not self._ending:
            self._beat()
            if not self._attempt():
                break
            self._seal(self._clock())
        return self._pause()

    def _pause(self) -> float:
        now = self._clock()
        with self._lock:
            times = [pending.due for pending in self._pending.values()]
        if self._queue:
            times.append(self._not_before)
        return min(max(0.1, min(times, default=now + _SLEEP) - now), _SLEEP)

    def _seal(self, now: float, *, all_of_them: bool = False) -> None:
        """Make profiles of what has waited long enough."""
        with self._lock:
            ready = [
                (name, pending.looks)
                for name, pending in self._pending.items()
                if all_of_them or pending.due <= now
            ]
            for name, looks in ready:
                pending = self._pending[name]
                pending.due, pending.looks = now + self._push.interval_seconds, []
                if not looks:
                    del self._pending[name]  # it ended, or the sensor has nothing to tell of it
        for name, looks in ready:
            for target, chunks in _parts(looks, _LONGEST * self._push.interval_seconds):
                self._queue.put(entry(name, target, chunks))
        self._tell()

    def _attempt(self) -> bool:
        """Send the oldest; whether to go on with the next."""
        oldest = self._queue.oldest
        assert oldest is not None  # noqa: S101
        try:
            self._sender.post(posted(oldest, self._push, self._instance))
        except PushFailed as error:
            return self._failed(error)
        self._queue.take()
        self._counts.sent += 1
        self._counts.bytes += len(oldest.pprof)
        self._counts.last_success = self._wall()
        if self._failures:
            _log.info("push works again", extra={"failures": self._failures, "waiting": len(self._queue)})
        self._failures, self._errors, self._not_before = 0, 0, 0.0
        self._tell()
        return True

    def _failed(self, error: PushFailed) -> bool:
        self._counts.failures[error.reason] = self._counts.failures.get(error.reason, 0) + 1
        say = _log.warning if not self._failures or not error.again else _log.debug
        say("push failed", extra={"reason": error.what, "remedy": error.remedy, "again": error.again})
        self._errors += error.reason == "error"
        if not error.again or self._errors >= _MOST_ERRORS:
            self._queue.take()
            self._errors = 0
            self._counts.dropped_refused += 1
            self._tell()
            return True
        self._failures += 1
        wait = min(_MOST_WAIT, _FIRST_WAIT * 2 ** min(self._failures - 1, 10))
        self._not_before = self._clock() + max(self._lot(wait / 2, wait), error.after_s)
        return False

    def _last(self) -> None:
        """What is left when the agent ends: one attempt each, for two seconds in all."""
        deadline = self._clock() + _LAST
        self._seal(self._clock(), all_of_them=True)
        while (oldest := self._queue.oldest) is not None and (left := deadline - self._clock()) > 0:
            try:
                self._sender.post(posted(oldest, self._push, self._instance), left)
            except PushFailed as error:
                _log.warning("push failed", extra={"reason": error.what, "lost": len(self._queue)})
                return
            self._queue.take()

    def _tell(self) -> None:
        self._counts.dropped_memory += self._queue.dropped
        self._queue.dropped = 0
        self._counts.queue_bytes = self._queue.bytes


def _parts(looks: list[Look], longest_s: float) -> Iterator[tuple[Target, list[Chunk]]]:
    """Stretches of time that are no longer than that, each of one version of the server."""
    chunks: list[Chunk] = []
    before: Target | None = None
    for target, chunk in looks:
        if before is not None and (
            chunk.end - chunks[0].start > longest_s
            or (before.flavour, before.version_text) != (target.flavour, target.version_text)
        ):
            yield before, chunks
            chunks = []
        before = target
        chunks.append(chunk)
    if before is not None:
        yield before, chunks


def entry(server: str, target: Target, chunks: list[Chunk]) -> Entry:
    """The profile of these looks."""
    whole = merged(chunks)
    return Entry(
        server, target.flavour, target.version_text, whole.start, whole.end, whole.looks,
        encode(report(target, whole)),
    )  # fmt: skip
