"""What all threads wait for: a look at their stacks once a second, added up by wait class."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from innoscope.common.errors import KernelUnable, NoRights
from innoscope.common.samples import Sample
from innoscope.common.workers import Job
from innoscope.metrics.collectors.errors import CollectorFailed
from innoscope.metrics.collectors.kinds import default_kinds
from innoscope.metrics.collectors.runner import explain
from innoscope.sampling.classify import default_classifier
from innoscope.sampling.engine import MOST_BYTES, Engine
from innoscope.sampling.model import Trust
from innoscope.sampling.profile_history import ProfileHistory, Stack

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from innoscope._native import ThreadKind
    from innoscope.common.workers import Workers
    from innoscope.sampling.model import Dump, Frame
    from innoscope.target.model import Target

_log = logging.getLogger(__name__)

#: A gap between looks counts for no more than so many intervals: what was in it nobody saw.
_LONGEST_GAP: Final = 5
#: Looks older than this tell nothing of now.
_STALE_S: Final = 5.0
#: After a failure, seconds until the next try.
_RETRY_S: Final = 5.0
#: What is remembered of stacks between looks; as the engine's own memory it is bounded.
_SEEN_KEPT: Final = 2_000
_CLOSE_S: Final = 0.3


class Looked(Protocol):
    """What takes in each look."""

    def __call__(self, taken_at: float, groups: Sequence[tuple[str, Stack, Sequence[int]]]) -> None:
        """``taken_at`` is Unix time; groups are ``(kind, stack, threads as the server knows them)``."""


class Eyes(Protocol):
    """What takes one look: the stack engine."""

    def look(self) -> Dump:
        """All threads, once."""


class _Seen(NamedTuple):
    """What was made of the threads with one stack, wait class, trust and name."""

    stack: Stack
    kind: ThreadKind


def open_eyes(target: Target) -> Eyes:
    """Return the engine. It copies by BPF; a daemon never stops threads."""
    try:
        return Engine(target, most_bytes=MOST_BYTES)
    except (NoRights, KernelUnable) as error:  # whose remedy would offer ptrace
        raise type(error)(error.what, remedy="innoscope doctor says what is missing") from error


class WaitsCollector:
    """Looks on threads of ``workers``; ``collect`` tells what was seen so far and never waits for a look."""

    name = "waits"
    timeout = 0.5

    def __init__(
        self,
        target: Target,
        profiles: ProfileHistory | None = None,
        *,
        workers: Workers,
        interval_s: float = 1.0,
        looked: Looked | None = None,
        eyes: Callable[[Target], Eyes] = open_eyes,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._target = target
        self._profiles = profiles or ProfileHistory()
        self._interval_s = interval_s
        self._looked = looked
        self._open_eyes = eyes
        self._clock = clock
        self._eyes: Eyes | None = None
        self._tally = _Tally()
        self._kinds: dict[int, str] = {}
        self._seen: dict[tuple[int, str, Trust, str], _Seen] = {}
        self._lock = threading.Lock()
        self._failure: tuple[str, str] | None = None  # reason and words, not the error: it holds our frames
        self._ended = False
        self._looking = threading.Lock()
        self._due = time.monotonic()
        self._workers = workers
        self._job = Job("looks", str(target.pid), self._look, self._schedule_retry)
        workers.submit(self._job)

    def collect(self) -> Iterable[Sample]:
        """Threads by class at the last look, and the sums. What ended the looks is raised."""
        with self._lock:
            if self._failure is not None:
                raise CollectorFailed(*self._failure)
            age = self._clock() - self._tally.looked_at if self._tally.looks else None
            if age is None:
                raise CollectorFailed("timeout", "the first look is under way")
            if age > max(_STALE_S, _LONGEST_GAP * self._interval_s):
                raise CollectorFailed("timeout", f"the last look ended {age:.0f} s ago")
            return self._tally.samples()

    def thread_kinds(self) -> Mapping[int, str]:
        """``{thread id as in /proc: kind}`` (see kinds.KINDS) as of the last look; empty before it."""
        return self._kinds

    def close(self) -> None:
        """End the looks; one that is under way is waited for, but not long."""
        self._ended = True
        if self._looking.acquire(timeout=_CLOSE_S):
            self._let_go()
            self._looking.release()

    def _look(self) -> None:
        """Take one look, and plan the next; looks that were missed are left out."""
        with self._looking:
            if not self._ended:
                pause = self._try_to_look()
                now = time.monotonic()
                self._due += pause
                if (late := now - self._due) > 0:
                    self._due += pause * (late // pause + 1)
                self._workers.submit_at(self._due, self._job)
            if self._ended:
                self._let_go()

    def _schedule_retry(self) -> None:
        """The thread died in a look, with which the lock went."""
        self._looking = threading.Lock()
        self._due = time.monotonic() + _RETRY_S
        self._workers.submit_at(self._due, self._job)

    def _let_go(self) -> None:
        """Descriptors and symbols go now, not with the next collection of garbage."""
        self._eyes = None
        self._seen.clear()

    def _try_to_look(self) -> float:
        """One look, whatever comes of it; how long to pause from its start to the next one."""
        try:
            if self._eyes is None:
                self._eyes = self._open_eyes(self._target)
            began = self._clock()
            dump = self._eyes.look()
            self._take(dump, self._clock() - began)
        except BaseException as error:  # a panic of the Rust core too: looks must go on once it is over
            self._fail(error)
            return _RETRY_S
        return self._interval_s

    def _fail(self, error: BaseException) -> None:
        failure = explain(error)
        with self._lock:
            if failure != self._failure and failure[0] != "gone":
                _log.warning("no look", extra={"pid": self._target.pid, "reason": ": ".join(failure)})
            self._failure, self._eyes = failure, None

    def _take(self, dump: Dump, seconds: float) -> None:
        """Count one look."""
        counts: Counter[int] = Counter()  # by identity: a stack's own hash is dear
        met: dict[int, Stack] = {}
        kinds = {}
        groups: dict[tuple[str, int], list[int]] = {}
        before = self._kinds
        # BPF tells ids of the host; if we share a pid namespace with the server, /proc has those of that one
        as_seen = any(thread.tid == self._target.pid for thread in dump.threads)
        for thread in dump.threads:
            frames = thread.frames
            seen = self._seen.get((id(frames), thread.wait, thread.trust, thread.comm))
            if seen is None:
                seen = self._see(thread.wait, thread.trust, frames, thread.comm)
            stack = seen.stack
            counts[id(stack)] += 1
            met[id(stack)] = stack
            tid, kind = thread.tid if as_seen else thread.ns_tid, seen.kind
            name = kinds[tid] = kind.name if kind.sure else before.get(tid, kind.name)
            groups.setdefault((name, id(stack)), []).append(thread.ns_tid)
        self._kinds = kinds
        with self._lock:
            self._tally.add(dump, self._clock(), seconds, _LONGEST_GAP * self._interval_s)
            self._failure = None
        by_stack: Counter[Stack] = Counter()
        for number, stack in met.items():  # not one to one: names of threads may differ
            by_stack[stack] += counts[number]
        self._profiles.add(dump.taken_at, by_stack, dump.duration_ms)
        if self._looked is not None:
            self._looked(
                dump.taken_at, [(kind, met[number], tids) for (kind, number), tids in groups.items()]
            )

    def _see(self, wait: str, trust: Trust, frames: tuple[Frame, ...], comm: str) -> _Seen:
        """Remembered by the identity of the frames, which the remembered stack keeps alive."""
        if len(self._seen) >= _SEEN_KEPT:
            self._seen.clear()
        seen = _Seen(Stack.of(wait, trust, frames), default_kinds().of(frames, comm))
        self._seen[id(frames), wait, trust, comm] = seen
        return seen


class _Tally:
    """The sums that are exported; every class and level of trust is always there."""

    def __init__(self) -> None:
        classes = default_classifier().catalog.classes
        self._threads = dict.fromkeys(classes, 0)
        self._seconds = dict.fromkeys(classes, 0.0)
        self._trust = dict.fromkeys(Trust, 0)
        self._look_seconds = 0.0
        self._shallow = 0
        self.looks = 0
        self.looked_at = 0.0

    def add(self, dump: Dump, now: float, seconds: float, longest_gap: float) -> None:
        """One look, of so many seconds; the time since the last one counts for its threads."""
        gap = min(now - self.looked_at, longest_gap) if self.looks else 0.0
        waits = dump.waits
        for wait in self._threads:
            count = self._threads[wait] = waits.get(wait, 0)
            self._seconds[wait] += gap * count
        tally = dump.tally
        for trust in Trust:
            self._trust[trust] += tally[trust]
        self._look_seconds, self.looked_at = seconds, now
        self._shallow = dump.shallow
        self.looks += 1

    def samples(self) -> list[Sample]:
        """What metrics.yaml declares for ``waits``."""
        return [
            *[Sample("threads", count, (wait,)) for wait, count in self._threads.items()],
            *[Sample("thread_seconds", seconds, (wait,)) for wait, seconds in self._seconds.items()],
            *[Sample("thread_samples", count, (trust.value,)) for trust, count in self._trust.items()],
            Sample("look_seconds", self._look_seconds),
            Sample("threads_cut", self._shallow),
        ]
