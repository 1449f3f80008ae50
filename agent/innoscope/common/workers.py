"""A bounded number of threads for the short jobs of many servers; each kind of job has its own threads."""

from __future__ import annotations

import heapq
import itertools
import logging
import threading
import time
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from innoscope.common.supervision import Beat

_log = logging.getLogger(__name__)

#: Threads of one kind of job; with those that replace stuck ones there are at most so many times as many.
SIZE: Final = 4
_SPARE: Final = 3
#: A job that takes this many seconds is stuck: another thread takes over the jobs behind it.
STUCK_S: Final = 5.0
#: Seconds between two looks for threads that died or are stuck.
_TEND_S: Final = 1.0


@dataclass(slots=True, eq=False)
class Job:
    """``run`` does the work and raises nothing; ``lost`` is called instead if its thread died meanwhile.

    ``kind`` says whose threads it takes, ``owner`` the server, for the log.
    """

    kind: str
    owner: str
    run: Callable[[], None]
    lost: Callable[[], None] = lambda: None
    begun: float = 0.0
    told: bool = False  # the log has it that it is stuck


@dataclass(frozen=True, slots=True)
class Stuck:
    """A job that does not end."""

    kind: str
    owner: str
    seconds: float


@dataclass(slots=True)
class _Lane:
    """The jobs of one kind, first come, first served, and its threads with what they do (None: rest)."""

    size: int
    most: int
    wake: threading.Condition
    waiting: deque[Job] = field(default_factory=deque)
    threads: dict[threading.Thread, Job | None] = field(default_factory=dict)
    stuck: int = 0
    refused: bool = False  # the kernel had no thread for us

    @property
    def resting(self) -> int:
        return sum(job is None for job in self.threads.values())


class Workers:
    """Threads are started when they are needed, at most ``size`` of a kind, or what ``sizes`` says of it.

    The thread of a stuck job is replaced, up to three times as many threads. A job is stuck after
    ``STUCK_S``, or after the seconds that ``patience`` has for its kind. ``run`` is to be supervised: it
    starts delayed jobs and replaces threads that died. Without it, ``submit`` works all the same.
    """

    def __init__(
        self,
        *,
        size: int = SIZE,
        sizes: Mapping[str, int] | None = None,
        patience: Mapping[str, float] | None = None,
    ) -> None:
        self._size, self._sizes = size, dict(sizes or {})
        self._patience = dict(patience or {})
        self._lock = threading.Lock()
        self._lanes: dict[str, _Lane] = {}
        self._later: list[tuple[float, int, Job]] = []
        self._sooner = threading.Condition(self._lock)  # an earlier delayed job than that which is waited for
        self._number = itertools.count()
        self._closed = False

    def submit(self, job: Job) -> None:
        """Run the job as soon as there is a thread. Never blocks, and never fails for want of a thread."""
        with self._lock:
            self._queue(job)

    def at(self, when: float, job: Job) -> None:
        """Run the job at the monotonic time ``when``, or soon after it."""
        with self._lock:
            heapq.heappush(self._later, (when, next(self._number), job))
            if self._later[0][2] is job:
                self._sooner.notify()

    def run(self, beat: Beat) -> None:
        """Start delayed jobs, and keep enough threads; until ``close``."""
        tended = time.monotonic()
        while not self._closed:
            beat()
            lost: list[Job] = []
            with self._lock:
                now = time.monotonic()
                while self._later and self._later[0][0] <= now:
                    self._queue(heapq.heappop(self._later)[2])
                if now - tended >= _TEND_S:
                    tended = now
                    lost = [job for lane in self._lanes.values() for job in self._tend(lane, now)]
                due = min(tended + _TEND_S, self._later[0][0] if self._later else now + _TEND_S)
                if not lost:
                    self._sooner.wait(max(0.0, due - now))
            for job in lost:
                _log.error("a job's thread died", extra={"kind": job.kind, "owner": job.owner})
                job.lost()

    def stuck(self) -> list[Stuck]:
        """Return the jobs that do not end."""
        now = time.monotonic()
        with self._lock:
            return [
                Stuck(job.kind, job.owner, now - job.begun)
                for lane in self._lanes.values()
                for job in lane.threads.values()
                if job is not None and self._is_stuck(job, now)
            ]

    def _is_stuck(self, job: Job, now: float) -> bool:
        return now - job.begun > self._patience.get(job.kind, STUCK_S)

    def threads(self) -> int:
        """Return how many threads there are."""
        with self._lock:
            return sum(len(lane.threads) for lane in self._lanes.values())

    def close(self, wait_s: float = 0.0) -> None:
        """End the threads that rest, and wait for the others, but for no longer than ``wait_s`` together.

        One that is stuck ends with its job or with the process.
        """
        with self._lock:
            self._closed = True
            for lane in self._lanes.values():
                lane.waiting.clear()
                lane.wake.notify_all()
            self._sooner.notify_all()
            threads = [thread for lane in self._lanes.values() for thread in lane.threads]
        deadline = time.monotonic() + wait_s
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def _lane(self, kind: str) -> _Lane:
        lane = self._lanes.get(kind)
        if lane is None:
            size = self._sizes.get(kind, self._size)
            lane = self._lanes[kind] = _Lane(size, _SPARE * size, threading.Condition(self._lock))
        return lane

    def _queue(self, job: Job) -> None:
        if self._closed:
            return
        lane = self._lane(job.kind)
        lane.waiting.append(job)
        self._provide(lane)
        lane.wake.notify()

    def _provide(self, lane: _Lane) -> None:
        """Start a thread where jobs wait, none rests and there may be one more."""
        if len(lane.waiting) <= lane.resting or len(lane.threads) >= min(lane.size + lane.stuck, lane.most):
            return
        kind = lane.waiting[0].kind
        thread = threading.Thread(target=self._work, args=(lane,), name=kind, daemon=True)
        lane.threads[thread] = None
        try:
            thread.start()
        except (RuntimeError, MemoryError) as error:  # as many as we may have: those that there are go on
            del lane.threads[thread]
            if not lane.refused:
                _log.warning("cannot start a thread", extra={"kind": kind, "error": str(error)})
            lane.refused = True
        else:
            lane.refused = False

    def _tend(self, lane: _Lane, now: float) -> list[Job]:
        """Forget threads that died, replace them and stuck ones; return the jobs that were lost."""
        dead = [thread for thread in lane.threads if not thread.is_alive()]
        lost = [job for job in map(lane.threads.pop, dead) if job is not None]
        stuck = [job for job in lane.threads.values() if job is not None and self._is_stuck(job, now)]
        for job in stuck:
            if not job.told:
                job.told = True
                _log.warning("a job is stuck", extra={"kind": job.kind, "owner": job.owner})
        lane.stuck = len(stuck)
        if lane.waiting:
            self._provide(lane)
        if lane.waiting or len(lane.threads) - lane.stuck > lane.size:
            lane.wake.notify_all()  # whoever was woken may have died; and those that are too many end
        return lost

    def _work(self, lane: _Lane) -> None:
        """Run jobs until ``close``, or until there are more threads than the lane is to have."""
        thread = threading.current_thread()
        while True:
            with self._lock:
                lane.threads[thread] = None
                while not lane.waiting and not self._closed:
                    if len(lane.threads) - lane.stuck > lane.size:
                        break
                    lane.wake.wait()
                if self._closed or not lane.waiting:
                    del lane.threads[thread]
                    return
                job = lane.waiting.popleft()
                lane.threads[thread] = job
                job.begun = time.monotonic()
            job.run()
            del job  # or a thread that rests would keep alive what its last job was about
