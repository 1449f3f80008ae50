"""Run short jobs for many servers on a bounded number of threads for each kind of job."""

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

#: Threads per kind of job.
SIZE: Final = 4
#: Maximum number of threads of one kind, including replacements of stuck threads, as a multiple of the
#: normal number.
_SPARE_FACTOR: Final = 3
#: A job that runs for more than this many seconds is stuck. A new thread then replaces the job's thread.
STUCK_S: Final = 5.0
#: Seconds between checks for threads that died or are stuck.
_CHECK_S: Final = 1.0


@dataclass(slots=True, eq=False)
class Job:
    """A unit of work for the worker threads.

    ``run`` does the work and never raises. ``lost`` is called if the thread dies during the job. ``kind``
    selects the threads. ``owner`` names the server in the log.
    """

    kind: str
    owner: str
    run: Callable[[], None]
    lost: Callable[[], None] = lambda: None
    started: float = 0.0
    logged_as_stuck: bool = False


@dataclass(frozen=True, slots=True)
class Stuck:
    """A job that is stuck, and for how many seconds it has been running."""

    kind: str
    owner: str
    seconds: float


@dataclass(slots=True)
class _Lane:
    """The queue of one kind of job, and the current job of each of its threads (None: idle)."""

    size: int
    max_threads: int
    wake: threading.Condition
    waiting: deque[Job] = field(default_factory=deque)
    threads: dict[threading.Thread, Job | None] = field(default_factory=dict)
    stuck: int = 0
    refused: bool = False  # the kernel refused the last attempt to start a thread

    @property
    def idle(self) -> int:
        return sum(job is None for job in self.threads.values())


class Workers:
    """Threads that run jobs.

    Threads are started on demand: at most ``size`` per kind, or the number in ``sizes`` for that kind. A job
    is stuck after ``STUCK_S`` seconds, or after the time in ``stuck_after`` for its kind. Its thread is then
    replaced; a kind can have at most three times the normal number of threads. ``run`` starts delayed jobs
    and replaces threads that died; it must be supervised. ``submit`` works even if ``run`` is not
    called.
    """

    def __init__(
        self,
        *,
        size: int = SIZE,
        sizes: Mapping[str, int] | None = None,
        stuck_after: Mapping[str, float] | None = None,
    ) -> None:
        self._size, self._sizes = size, dict(sizes or {})
        self._stuck_after = dict(stuck_after or {})
        self._lock = threading.Lock()
        self._lanes: dict[str, _Lane] = {}
        self._delayed: list[tuple[float, int, Job]] = []  # a heap
        self._new_earliest = threading.Condition(self._lock)  # notified when the earliest delayed job changes
        self._number = itertools.count()
        self._closed = False

    def submit(self, job: Job) -> None:
        """Run the job as soon as a thread is free. Does not block or raise, even if no thread can start."""
        with self._lock:
            self._queue(job)

    def submit_at(self, when: float, job: Job) -> None:
        """Run the job at the monotonic time ``when`` or soon after."""
        with self._lock:
            heapq.heappush(self._delayed, (when, next(self._number), job))
            if self._delayed[0][2] is job:
                self._new_earliest.notify()

    def run(self, beat: Beat) -> None:
        """Start delayed jobs and replace threads that died or are stuck, until ``close`` is called."""
        checked = time.monotonic()
        while not self._closed:
            beat()
            lost: list[Job] = []
            with self._lock:
                now = time.monotonic()
                while self._delayed and self._delayed[0][0] <= now:
                    self._queue(heapq.heappop(self._delayed)[2])
                if now - checked >= _CHECK_S:
                    checked = now
                    lost = [job for lane in self._lanes.values() for job in self._check_threads(lane, now)]
                due = min(checked + _CHECK_S, self._delayed[0][0] if self._delayed else now + _CHECK_S)
                if not lost:
                    self._new_earliest.wait(max(0.0, due - now))
            for job in lost:
                _log.error("thread died during a job", extra={"kind": job.kind, "owner": job.owner})
                job.lost()

    def stuck(self) -> list[Stuck]:
        """Return the jobs that are stuck."""
        now = time.monotonic()
        with self._lock:
            return [
                Stuck(job.kind, job.owner, now - job.started)
                for lane in self._lanes.values()
                for job in lane.threads.values()
                if job is not None and self._is_stuck(job, now)
            ]

    def _is_stuck(self, job: Job, now: float) -> bool:
        return now - job.started > self._stuck_after.get(job.kind, STUCK_S)

    def threads(self) -> int:
        """Return the number of threads."""
        with self._lock:
            return sum(len(lane.threads) for lane in self._lanes.values())

    def close(self, wait_s: float = 0.0) -> None:
        """End idle threads, and wait at most ``wait_s`` seconds in total for the busy threads.

        A stuck thread exits when its job or the process ends.
        """
        with self._lock:
            self._closed = True
            for lane in self._lanes.values():
                lane.waiting.clear()
                lane.wake.notify_all()
            self._new_earliest.notify_all()
            threads = [thread for lane in self._lanes.values() for thread in lane.threads]
        deadline = time.monotonic() + wait_s
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def _lane(self, kind: str) -> _Lane:
        lane = self._lanes.get(kind)
        if lane is None:
            size = self._sizes.get(kind, self._size)
            lane = self._lanes[kind] = _Lane(size, _SPARE_FACTOR * size, threading.Condition(self._lock))
        return lane

    def _queue(self, job: Job) -> None:
        if self._closed:
            return
        lane = self._lane(job.kind)
        lane.waiting.append(job)
        self._start_thread_if_needed(lane)
        lane.wake.notify()

    def _start_thread_if_needed(self, lane: _Lane) -> None:
        """Start a thread if there are more waiting jobs than idle threads, and the limit allows it."""
        limit = min(lane.size + lane.stuck, lane.max_threads)
        if len(lane.waiting) <= lane.idle or len(lane.threads) >= limit:
            return
        kind = lane.waiting[0].kind
        thread = threading.Thread(target=self._work, args=(lane,), name=kind, daemon=True)
        lane.threads[thread] = None
        try:
            thread.start()
        except (RuntimeError, MemoryError) as error:  # the thread limit is reached; continue with fewer
            del lane.threads[thread]
            if not lane.refused:
                _log.warning("cannot start a thread", extra={"kind": kind, "error": str(error)})
            lane.refused = True
        else:
            lane.refused = False

    def _check_threads(self, lane: _Lane, now: float) -> list[Job]:
        """Replace threads that died or are stuck. Return the jobs of the threads that died."""
        dead = [thread for thread in lane.threads if not thread.is_alive()]
        lost = [job for job in map(lane.threads.pop, dead) if job is not None]
        stuck = [job for job in lane.threads.values() if job is not None and self._is_stuck(job, now)]
        for job in stuck:
            if not job.logged_as_stuck:
                job.logged_as_stuck = True
                _log.warning("job is stuck", extra={"kind": job.kind, "owner": job.owner})
        lane.stuck = len(stuck)
        if lane.waiting:
            self._start_thread_if_needed(lane)
        if lane.waiting or len(lane.threads) - lane.stuck > lane.size:
            # Wake all threads: the notified one may have died, and surplus threads exit when they wake up.
            lane.wake.notify_all()
        return lost

    def _work(self, lane: _Lane) -> None:
        """Run jobs until ``close`` is called, or until this thread is surplus."""
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
                job.started = time.monotonic()
            job.run()
            del job  # an idle thread must not keep its last job's objects alive
