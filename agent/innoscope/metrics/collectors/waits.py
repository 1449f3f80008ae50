"""Count a server's threads by wait class, from one stack snapshot per second."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, TypeAlias

from innoscope.common import slowness
from innoscope.common.errors import KernelUnable, NoRights
from innoscope.common.samples import Sample
from innoscope.common.workers import Job, slow_runs
from innoscope.memory.statements.attribution import EXACT, RUNNING
from innoscope.memory.statements.source import StatementSource
from innoscope.metrics.collectors.errors import CollectorFailed
from innoscope.metrics.collectors.kinds import default_kinds
from innoscope.metrics.collectors.runner import explain
from innoscope.metrics.collectors.snapshot_budget import SnapshotBudget
from innoscope.sampling.classify import IDLE, default_classifier
from innoscope.sampling.engine import MOST_BYTES, Engine
from innoscope.sampling.model import Trust
from innoscope.sampling.profile_history import ClassifiedStack, ProfileHistory
from innoscope.sampling.sessions.buffer import is_busy
from innoscope.sampling.snapshot_history import APPLIER, CLIENT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from innoscope._native import ThreadKind
    from innoscope.common.workers import Workers
    from innoscope.sampling.model import Snapshot, Thread
    from innoscope.sampling.snapshot_series import SnapshotSource
    from innoscope.target.model import Target

_log = logging.getLogger(__name__)

#: Maximum time that a snapshot represents, as a multiple of the pause; more on a slow host. The rest of a
#: longer gap counts as unobserved.
_LONGEST_GAP: Final = 5
#: Age in seconds at which the last snapshot is too old to export; more on a slow host or after long pauses.
_STALE_S: Final = 5.0
#: Seconds until the next snapshot after a failure.
_RETRY_S: Final = 5.0
#: Maximum number of stacks in the cache, in addition to twice the number in the last snapshot. If there are
#: more, only the stacks of the last snapshot are kept, because running threads keep producing new stacks.
_SPARE_STACKS: Final = 500
#: Maximum number of frames of the stacks in the cache, in addition to twice the number in the last snapshot.
#: Only runaway recursion exceeds it. Each frame may take 250 bytes.
_SPARE_FRAMES: Final = 10_000
_CLOSE_S: Final = 0.3
#: The ``kind`` label of the ``threads`` metric, by kind of thread. All other kinds get ``background``.
_KIND_LABEL: Final = {CLIENT: "client", APPLIER: "applier"}


class SnapshotCallback(Protocol):
    """A callback that receives each snapshot."""

    def __call__(self, taken_at: float, groups: Sequence[tuple[str, ClassifiedStack, Sequence[int]]]) -> None:
        """Process one snapshot, taken at Unix time ``taken_at``. A group is ``(kind, stack, thread ids)``.

        Thread ids are as seen in the server's pid namespace.
        """


class ThreadsCallback(Protocol):
    """A callback that receives the busy threads of each snapshot."""

    def __call__(
        self, taken_at: float, weight: float, threads: Sequence[tuple[str, ClassifiedStack, Thread]]
    ) -> None:
        """Process the ``(kind, stack, thread)`` of the busy threads. Called even if there are none.

        ``weight`` is the number of seconds that the snapshot adds to ``thread_seconds`` for each thread.
        """


class _Seen(NamedTuple):
    """A cache entry: the stack and kind of threads with equal frames, wait class, trust level and name."""

    stack: ClassifiedStack
    kind: ThreadKind


#: The id() of a stack's frames, the wait class, the trust level and the thread's name.
_SeenKey: TypeAlias = tuple[int, str, Trust, str]


def open_engine(target: Target, method: str = "auto") -> Engine:
    """Return a sampling engine whose method stops no threads: by default, the best method that works.

    Raise NoRights or KernelUnable if no such method works on this host.
    """
    try:
        engine = Engine(target, method=method, most_bytes=MOST_BYTES)
    except (NoRights, KernelUnable) as error:  # replace the remedy, which suggests ptrace
        raise type(error)(error.what, remedy="innoscope doctor shows what is missing") from error
    _log.info("process %d: snapshots by method %s", target.pid, engine.method)
    return engine


def open_with_statements(target: Target, workers: Workers, method: str = "auto") -> StatementSource:
    """Return a source of snapshots with statements.

    A job on ``workers`` determines how statements are laid out in the server's memory. Raise NoRights or
    KernelUnable as ``open_engine`` does.
    """
    return StatementSource(target, open_engine(target, method), workers)


class WaitsCollector:
    """Takes snapshots on the threads of ``workers``. ``collect`` never waits for a snapshot."""

    name = "waits"
    timeout = 0.5

    def __init__(
        self,
        target: Target,
        profiles: ProfileHistory | None = None,
        *,
        workers: Workers,
        interval_s: float = 1.0,
        on_snapshot: SnapshotCallback | None = None,
        on_threads: ThreadsCallback | None = None,
        on_kinds: Callable[[], None] | None = None,
        open_source: Callable[[Target], SnapshotSource] = open_engine,
        clock: Callable[[], float] = time.monotonic,
        turn: str = "",
        budget: SnapshotBudget | None = None,
    ) -> None:
        self._target = target
        self._profiles = profiles or ProfileHistory()
        self._interval_s = self._pause_s = interval_s
        self._turn, self._budget = turn, budget or SnapshotBudget()
        self._on_snapshot = on_snapshot
        self._on_threads = on_threads
        self._on_kinds = on_kinds
        self._open_source = open_source
        self._clock = clock
        self._source: SnapshotSource | None = None
        self._tally = _Tally()
        self._kinds: dict[int, str] = {}
        self._seen: dict[_SeenKey, _Seen] = {}
        self._seen_frames = 0
        self._lock = threading.Lock()
        self._failure: tuple[str, str] | None = None  # (reason, message)
        self._ended = self._logged_as_expensive = False
        self._tried = False  # the first snapshot is complete or has failed
        self._after_first: list[Callable[[], None]] = []
        self._snapshot_lock = threading.Lock()
        self._due = time.monotonic()
        self._workers = workers
        self._job = Job("snapshots", str(target.pid), self._take_scheduled, self._schedule_retry, turn)
        workers.submit(self._job)

    def collect(self) -> Iterable[Sample]:
        """Return the number of threads per wait class in the last snapshot, and the totals so far.

        Raise CollectorFailed if the last snapshot failed or is too old, or if there is none yet.
        """
        with self._lock:
            if self._failure is not None:
                raise CollectorFailed(*self._failure)
            age = self._clock() - self._tally.ended_at if self._tally.snapshots else None
            if age is None:
                raise CollectorFailed("timeout", "the first snapshot is under way")
            if age > max(slowness.scaled(_STALE_S), self._longest_gap_s()):
                raise CollectorFailed("timeout", f"the last snapshot ended {age:.0f} s ago")
            return [*self._tally.samples(), *self._statement_samples()]

    def _longest_gap_s(self) -> float:
        return slowness.scaled(_LONGEST_GAP * self._pause_s)

    def _statement_samples(self) -> list[Sample]:
        """Return the metrics of statements; none if the source does not attach statements."""
        available = getattr(self._source, "available", None)
        if available is None:
            return []
        threads = self._tally.statements.items() if available else ()
        return [
            Sample("statements_up", float(available)),
            *[Sample("statement_threads", count, (trust,)) for trust, count in threads],
        ]

    def thread_kinds(self) -> Mapping[int, str]:
        """Return the kind (kinds.KINDS) of each thread in the last snapshot, by thread id as in /proc."""
        return self._kinds

    def after_first(self, call: Callable[[], None]) -> None:
        """Call ``call``, which must not block or raise, once the first snapshot is complete or has failed."""
        with self._lock:
            if not self._tried:
                self._after_first.append(call)
                return
        call()

    def close(self) -> None:
        """Stop taking snapshots. Wait at most ``_CLOSE_S`` seconds for one in progress."""
        self._ended = True
        self._workers.cancel(self._job)
        if self._snapshot_lock.acquire(timeout=_CLOSE_S):
            self._let_go()
            self._snapshot_lock.release()

    def _take_scheduled(self) -> None:
        """Take one snapshot, and schedule the next one. Snapshots that are overdue by then are skipped."""
        with self._snapshot_lock:
            if not self._ended:
                began = time.monotonic()
                pause = self._try_snapshot()
                now = time.monotonic()
                self._job.slow_runs = slow_runs(self._job.slow_runs, now - began)
                self._due += pause
                if (late := now - self._due) > 0:
                    self._due += pause * (late // pause + 1)
                self._workers.submit_at(self._due, self._job)
            if self._ended:
                self._let_go()

    def _schedule_retry(self) -> None:
        """Replace the lock that a dead thread still holds, and schedule a snapshot."""
        self._snapshot_lock = threading.Lock()
        self._due = time.monotonic() + _RETRY_S
        self._workers.submit_at(self._due, self._job)

    def _let_go(self) -> None:
        """Release the descriptors and symbols now instead of at the next garbage collection."""
        self._close_source()
        self._seen.clear()
        self._seen_frames = 0
        self._budget.forget(self)

    def _close_source(self) -> None:
        """Close the source of snapshots, if it can be closed. It must not be used any more."""
        source, self._source = self._source, None
        if (close := getattr(source, "close", None)) is not None:
            close()

    def _try_snapshot(self) -> float:
        """Try to take one snapshot; never raise. Return the seconds between its due time and the next one."""
        started, cpu, interval_s = self._clock(), time.thread_time(), self._interval_s
        try:
            if self._source is None:
                self._source = self._open_source(self._target)
            began = self._clock()
            snapshot = self._source.take_snapshot()
            self._take(snapshot, self._clock() - began)
            if self._tally.snapshots == 1:  # it also read the symbols, which happens only once
                return interval_s
        except BaseException as error:  # includes panics of the Rust core; retry later
            self._fail(error)
            interval_s = _RETRY_S
        finally:
            self._end_first()
        used_s = time.thread_time() - cpu
        pause_s = self._budget.pause_s(self, self._turn, interval_s, self._clock() - started, used_s)
        if pause_s > interval_s and not self._logged_as_expensive:
            self._logged_as_expensive = True
            _log.warning(
                "snapshots are expensive and therefore less frequent",
                extra={"pid": self._target.pid, "pause_s": round(pause_s, 1), "cpu_s": round(used_s, 2)},
            )
        self._pause_s = max(pause_s, self._interval_s)
        return pause_s

    def _end_first(self) -> None:
        """Run the calls that are waiting for the first snapshot."""
        with self._lock:
            self._tried, calls = True, self._after_first
            self._after_first = []
        for call in calls:
            call()

    def _fail(self, error: BaseException) -> None:
        failure = explain(error)
        with self._lock:
            if failure != self._failure and failure[0] != "gone":
                _log.warning("no snapshot", extra={"pid": self._target.pid, "reason": ": ".join(failure)})
            self._failure = failure
            self._close_source()

    def _take(self, snapshot: Snapshot, seconds: float) -> None:
        """Count the threads of one snapshot, which took ``seconds``."""
        counts: Counter[int] = Counter()  # keyed by id(), because hashing a stack is expensive
        met: dict[int, ClassifiedStack] = {}
        kinds = {}
        groups: dict[tuple[str, int], list[int]] = {}
        busy: list[tuple[str, ClassifiedStack, Thread]] = []
        used: dict[_SeenKey, _Seen] = {}
        new: dict[tuple[int, str, Trust], ClassifiedStack] = {}
        before = self._kinds
        # ``tid`` is the thread id on the host, ``ns_tid`` is the one in the server's pid namespace. /proc
        # shows ``ns_tid`` if this process is in the same pid namespace as the server.
        as_seen = any(thread.tid == self._target.pid for thread in snapshot.threads)
        for thread in snapshot.threads:
            frames = thread.frames
            # The id stays valid, because the cached stack references the frames.
            key = id(frames), thread.wait, thread.trust, thread.comm
            seen = self._seen.get(key)
            if seen is None:
                stack = new.get(key[:3]) or ClassifiedStack.of(thread.wait, thread.trust, frames)
                new[key[:3]] = stack
                seen = self._seen[key] = _Seen(stack, default_kinds().of(frames, thread.comm))
                self._seen_frames += len(frames)
            used[key] = seen
            stack = seen.stack
            counts[id(stack)] += 1
            met[id(stack)] = stack
            tid, kind = thread.tid if as_seen else thread.ns_tid, seen.kind
            name = kinds[tid] = kind.name if kind.sure else before.get(tid, kind.name)
            groups.setdefault((name, id(stack)), []).append(thread.ns_tid)
            if is_busy(thread):
                busy.append((name, stack, thread))
        frames_used = sum(len(one.stack.frames) for one in used.values())
        many_frames = self._seen_frames > 2 * frames_used + _SPARE_FRAMES
        if many_frames or len(self._seen) > 2 * len(used) + _SPARE_STACKS:
            self._seen, self._seen_frames = used, frames_used
        self._kinds = kinds
        if self._on_kinds is not None:
            self._on_kinds()
        threads: Counter[tuple[str, str]] = Counter()
        for (name, number), tids in groups.items():
            threads[met[number].wait, _KIND_LABEL.get(name, "background")] += len(tids)
        with self._lock:
            weight = self._tally.add(snapshot, threads, self._clock(), seconds, self._longest_gap_s())
            self._failure = None
        by_stack: Counter[ClassifiedStack] = Counter()
        for number, stack in met.items():  # equal stacks may be several objects, if thread names differ
            by_stack[stack] += counts[number]
        self._profiles.add(snapshot.taken_at, by_stack, snapshot.duration_ms)
        if self._on_snapshot is not None:
            self._on_snapshot(
                snapshot.taken_at, [(kind, met[number], tids) for (kind, number), tids in groups.items()]
            )

        if self._on_threads is not None and weight > 0:  # the first snapshot represents no time
            self._on_threads(snapshot.taken_at, weight, busy)


class _Tally:
    """The exported values. Every wait class and every trust level is always present.

    ``_threads`` is keyed by wait class and kind of thread. ``client`` is present in all classes; other kinds
    are present once one of their threads has been in the class.
    """

    def __init__(self) -> None:
        classes = default_classifier().catalog.classes
        self._threads = dict.fromkeys(((wait, "client") for wait in classes), 0)
        self._seconds = dict.fromkeys(classes, 0.0)
        self._trust = dict.fromkeys(Trust, 0)
        self._snapshot_seconds = 0.0
        self._shallow = 0
        self.statements = dict.fromkeys((EXACT, RUNNING, "none"), 0)  # busy client threads by trust
        self.snapshots = 0
        self.ended_at = 0.0

    def add(
        self,
        snapshot: Snapshot,
        threads: Mapping[tuple[str, str], int],
        now: float,
        seconds: float,
        longest_gap: float,
    ) -> float:
        """Add one snapshot, which took ``seconds``. ``threads`` counts the threads by ``(wait class, kind)``.

        Attribute the seconds since the previous snapshot, at most ``longest_gap``, to each thread of the new
        one, and return this number of seconds.
        """
        gap = min(now - self.ended_at, longest_gap) if self.snapshots else 0.0
        self._threads = dict.fromkeys(self._threads, 0) | dict(threads)
        for (wait, _), count in threads.items():
            self._seconds[wait] += gap * count
        queries = (thread.query for thread in snapshot.threads if thread.query is not None)
        trusts = Counter(query.trust for query in queries)
        busy = sum(count for (wait, kind), count in threads.items() if kind == "client" and wait not in IDLE)
        exact, running = trusts[EXACT], trusts[RUNNING]
        self.statements = {EXACT: exact, RUNNING: running, "none": max(0, busy - exact - running)}
        tally = snapshot.tally
        for trust in Trust:
            self._trust[trust] += tally[trust]
        self._snapshot_seconds, self.ended_at = seconds, now
        self._shallow = snapshot.shallow
        self.snapshots += 1
        return gap

    def samples(self) -> list[Sample]:
        """Return the samples that metrics.yaml declares for ``waits``."""
        return [
            *[Sample("threads", count, labels) for labels, count in self._threads.items()],
            *[Sample("thread_seconds", seconds, (wait,)) for wait, seconds in self._seconds.items()],
            *[Sample("thread_samples", count, (trust.value,)) for trust, count in self._trust.items()],
            Sample("look_seconds", self._snapshot_seconds),
            Sample("threads_cut", self._shallow),
        ]
