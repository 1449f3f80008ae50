"""Run short jobs for many servers on a bounded number of threads for each kind of job."""

from __future__ import annotations

import heapq
import itertools
import logging
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from innoscope.common.supervision import Beat

_log = logging.getLogger(__name__)

#: Threads per lane.
SIZE: Final = 4
#: A job that takes longer than this many seconds is slow.
QUICK_S: Final = 0.1
#: Number of slow jobs in a row after which the server counts as slow.
SLOW_RUNS: Final = 3
#: Maximum number of threads of a lane, including replacements of stuck threads, as a multiple of the normal
#: number. Abandoned jobs do not count.
_SPARE_FACTOR: Final = 3
#: The same for the lanes of quick jobs, which need little memory and CPU time.
_QUICK_SPARE_FACTOR: Final = 8
#: A job that runs for more than this many seconds is stuck. A new thread then replaces the job's thread.
STUCK_S: Final = 5.0
#: A stuck job is abandoned after this many seconds, because it may never end: its thread is replaced, and
#: does not count toward the maximum number of threads.
_ABANDON_S: Final = 10.0
#: The same for a job of a server whose last job was quick, even if the job is not stuck yet.
_ABANDON_QUICK_S: Final = 1.0
#: Maximum number of abandoned jobs of a lane. A turn or a group has at most half of them: one for each
#: server, if all 64 servers that the sensor watches by default belong to one user.
_MAX_ABANDONED: Final = 128
#: Seconds between checks for threads that died or are stuck.
_CHECK_S: Final = 1.0


@dataclass(slots=True, eq=False)
class Job:
    """A unit of work for the worker threads.

    ``run`` does the work and never raises. ``lost`` is called if the thread dies during the job. ``owner``
    names the server in the log. ``slow_runs`` is the number of slow jobs of this kind that the server has had
    in a row. The first job of a server counts as if one slow job had preceded it.

    Each kind of job has two lanes: one for servers whose last job was quick, and one for all others. No quick
    server therefore waits for slow ones. In the second lane, the jobs of slow servers (``SLOW_RUNS``) come
    last within their turn, and the jobs of one turn or group get at most half of the threads. All slow
    servers together leave at least one thread (if there are more than two) for servers that are new, or that
    were slow only once or twice.

    Jobs of a lane run in the order of submission, except that different values of ``turn`` are served in
    rotation. A non-empty turn gets another thread only while it occupies fewer threads than the lane can
    still start. Stuck jobs of one turn therefore leave threads for other turns.

    The turns ``group/one`` and ``group/two`` belong to the same group. A group counts as one turn, which its
    members share in rotation, and gets at most half of the threads.
    """

    kind: str
    owner: str
    run: Callable[[], None]
    lost: Callable[[], None] = lambda: None
    turn: str = ""
    slow_runs: int = 1
    started: float = 0.0
    stuck: bool = False
    abandoned: bool = False

    @property
    def quick(self) -> bool:
        """Return whether the server's last job was quick."""
        return self.slow_runs == 0

    @property
    def slow(self) -> bool:
        """Return whether the server's last jobs were slow."""
        return self.slow_runs >= SLOW_RUNS

    @property
    def group(self) -> str:
        """Return the group of the job's turn; empty if the turn belongs to no group."""
        return group_of(self.turn)

    @property
    def sharer(self) -> str:
        """Return the group of the job's turn; without one, the turn."""
        return self.group or self.turn


@dataclass(frozen=True, slots=True)
class Stuck:
    """A job that is stuck, and how long it has been running, in seconds."""

    kind: str
    owner: str
    seconds: float


@dataclass(slots=True)
class _Lane:
    """The queue of quick or of other jobs of one kind, and each thread's current job (None: idle)."""

    quick: bool
    size: int
    wake: threading.Condition
    waiting: list[Job] = field(default_factory=list)
    served: dict[str, int] = field(default_factory=dict)  # by turn or group: ``number`` of its last job
    number: int = 0
    threads: dict[threading.Thread, Job | None] = field(default_factory=dict)
    replaced: int = 0  # threads with stuck or abandoned jobs
    refused: bool = False  # the kernel refused the last attempt to start a thread

    @property
    def idle(self) -> int:
        return sum(job is None for job in self.threads.values())

    @property
    def max_threads(self) -> int:
        return (_QUICK_SPARE_FACTOR if self.quick else _SPARE_FACTOR) * self.size

    @property
    def limit(self) -> int:
        """Return the current maximum number of threads.

        In a lane of quick jobs, two threads replace each one. If many servers hang at the same moment, the
        number of threads therefore at least doubles with each check, and soon suffices for the others.
        """
        replacements = (2 if self.quick else 1) * self.replaced
        return min(self.size + replacements, self.max_threads + len(self.abandoned))

    @property
    def abandoned(self) -> list[Job]:
        return [job for job in self.threads.values() if job is not None and job.abandoned]

    def runnable(self) -> list[Job]:
        """Return the waiting jobs, except jobs of turns, groups and slow servers with too many threads."""
        running = [job for job in self.threads.values() if job is not None and not job.abandoned]
        turns = Counter(job.turn for job in running)
        groups = Counter(job.group for job in running)
        active = Counter(job.group for job in running if not job.stuck)
        slow = Counter(job.sharer for job in running if job.slow)
        unused = self.max_threads - len(running)
        most_active = _half(self.limit - self.replaced)

        def may_run(job: Job) -> bool:
            if job.slow and not self._may_run_slow(job, slow):
                return False
            if not job.group:
                return not job.turn or turns[job.turn] < unused
            left = _half(self.max_threads) - groups[job.group]
            return turns[job.turn] < min(left, unused) and active[job.group] < most_active

        return [job for job in self.waiting if may_run(job)]

    def _may_run_slow(self, job: Job, running: Counter[str]) -> bool:
        return running[job.sharer] < _half(self.size) and running.total() < max(2, self.size - 1)

    def take(self) -> Job | None:
        """Remove and return the job to run next.

        It belongs to the turn that was served longest ago. Within a turn, jobs of slow servers come last.
        """
        job = min(self.runnable(), key=lambda one: (*self._last_served(one), one.slow), default=None)
        if job is None:
            return None
        self.waiting.remove(job)
        self.number += 1
        self.served |= dict.fromkeys({job.sharer, job.turn}, self.number)
        if len(self.served) > 2 * (len(self.waiting) + 1):
            kept = {name for one in (*self.waiting, job) for name in (one.group, one.turn)}
            self.served = {name: number for name, number in self.served.items() if name in kept}
        return job

    def may_abandon(self, job: Job) -> bool:
        """Return whether the limits allow one more abandoned job of this turn and group."""
        abandoned = self.abandoned
        peers = sum(one.sharer == job.sharer for one in abandoned)
        return len(abandoned) < _MAX_ABANDONED and peers < _half(_MAX_ABANDONED)

    def _last_served(self, job: Job) -> tuple[int, int]:
        turn = self.served.get(job.turn, 0)
        return self.served.get(job.group, 0) if job.group else turn, turn


def slow_runs(before: int, seconds: float) -> int:
    """Return the number of slow jobs in a row, given the number ``before`` a job that took ``seconds``."""
    return before + 1 if seconds > QUICK_S else 0


def group_of(turn: str) -> str:
    """Return the group of a turn; empty if it belongs to no group."""
    return turn.rpartition("/")[0]


def _half(threads: int) -> int:
    return (threads + 1) // 2


class Workers:
    """Threads that run jobs.

    Threads are started on demand: at most ``size`` per lane, or the number in ``sizes`` for its kind. A job
    is stuck after ``STUCK_S`` seconds, or after the time in ``stuck_after`` for its kind. Its thread is then
    replaced; a lane can have at most three times the normal number of threads (eight times for quick jobs),
    not counting threads of abandoned jobs. ``abandon_after`` contains the seconds for kinds whose stuck jobs
    are abandoned later than others.
    ``run`` starts delayed jobs and replaces threads that died or are stuck; it must be supervised. ``submit``
    works even if ``run`` is not called.
    """

    def __init__(
        self,
        *,
        size: int = SIZE,
        sizes: Mapping[str, int] | None = None,
        stuck_after: Mapping[str, float] | None = None,
        abandon_after: Mapping[str, float] | None = None,
    ) -> None:
        self._size, self._sizes = size, dict(sizes or {})
        self._stuck_after, self._abandon_after = dict(stuck_after or {}), dict(abandon_after or {})
        self._lock = threading.Lock()
        self._lanes: dict[tuple[str, bool], _Lane] = {}  # by kind, and whether the jobs are quick
        self._delayed: list[tuple[float, int, Job]] = []  # a heap
        self._new_earliest = threading.Condition(self._lock)  # notified when the earliest delayed job changes
        self._number = itertools.count()
        self._closed = False

    def submit(self, job: Job) -> None:
        """Run the job as soon as a thread is free. Never block or raise, even if no thread can start."""
        with self._lock:
            self._queue(job)

    def submit_at(self, when: float, job: Job) -> None:
        """Run the job at the monotonic time ``when`` or soon after."""
        with self._lock:
            heapq.heappush(self._delayed, (when, next(self._number), job))
            if self._delayed[0][2] is job:
                self._new_earliest.notify()

    def cancel(self, job: Job) -> None:
        """Remove the job if it is waiting for a thread."""
        with self._lock:
            lane = self._lanes.get((job.kind, job.quick))
            if lane is not None and job in lane.waiting:
                lane.waiting.remove(job)

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

    def _abandon_after_s(self, job: Job) -> float:
        if job.quick:
            return _ABANDON_QUICK_S
        return max(self._abandon_after.get(job.kind, _ABANDON_S), self._stuck_after.get(job.kind, STUCK_S))

    def threads(self) -> int:
        """Return the number of threads."""
        with self._lock:
            return sum(len(lane.threads) for lane in self._lanes.values())

    def close(self, wait_s: float = 0.0) -> None:
        """Discard waiting jobs, end idle threads, and wait up to ``wait_s`` seconds in total for busy ones.

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

    def _lane(self, job: Job) -> _Lane:
        key = job.kind, job.quick
        lane = self._lanes.get(key)
        if lane is None:
            size = self._sizes.get(job.kind, self._size)
            lane = self._lanes[key] = _Lane(job.quick, size, threading.Condition(self._lock))
        return lane

    def _queue(self, job: Job) -> None:
        if self._closed:
            return
        lane = self._lane(job)
        lane.waiting.append(job)
        self._start_thread_if_needed(lane)
        lane.wake.notify()

    def _start_thread_if_needed(self, lane: _Lane) -> bool:
        """Start a thread if there are more runnable jobs than idle threads, and the limit allows it.

        Return whether a thread was started.
        """
        if len(lane.threads) >= lane.limit or len(lane.runnable()) <= lane.idle:
            return False
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
        return not lane.refused

    def _check_threads(self, lane: _Lane, now: float) -> list[Job]:
        """Replace threads that died or are stuck. Return the jobs of the threads that died."""
        dead = [thread for thread in lane.threads if not thread.is_alive()]
        lost = [job for job in map(lane.threads.pop, dead) if job is not None]
        running = [job for job in lane.threads.values() if job is not None]
        for job in running:
            if not job.stuck and self._is_stuck(job, now):
                job.stuck = True
                _log.warning("job is stuck", extra={"kind": job.kind, "owner": job.owner})
            if not job.abandoned and now - job.started > self._abandon_after_s(job):
                job.abandoned = lane.may_abandon(job)
        lane.replaced = sum(job.stuck or job.abandoned for job in running)
        while lane.waiting and self._start_thread_if_needed(lane):
            pass
        if lane.waiting or len(lane.threads) > lane.limit:
            # Wake all threads: the notified one may have died, and surplus threads exit when they wake up.
            lane.wake.notify_all()
        return lost

    def _work(self, lane: _Lane) -> None:
        """Run jobs until ``close`` is called, or until this thread is surplus."""
        thread = threading.current_thread()
        while True:
            with self._lock:
                lane.threads[thread] = None
                while (job := lane.take()) is None:
                    if self._closed or len(lane.threads) > lane.limit:
                        del lane.threads[thread]
                        return
                    lane.wake.wait()
                lane.threads[thread] = job
                job.started = time.monotonic()
                job.stuck = job.abandoned = False  # the same object may have run before
            job.run()
            del job  # an idle thread must not keep its last job's objects alive
