"""Take snapshots of all threads repeatedly on a background thread, and fold them by stack."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter, deque
from pathlib import Path
from typing import TYPE_CHECKING, Final

from innoscope.common.errors import InnoscopeError
from innoscope.diagnose.evidence import MissingSource, OnFile
from innoscope.metrics.collectors.kinds import default_kinds
from innoscope.metrics.collectors.runner import explain
from innoscope.sampling import descriptors
from innoscope.sampling.snapshot_history import (
    CLIENT,
    MAX_STACKS,
    TIDS_KEPT,
    SnapshotHistory,
    SnapshotSummary,
    doing,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from innoscope.memory.locks.owners import LockOwners
    from innoscope.sampling.model import Frame, Snapshot, Thread
    from innoscope.sampling.snapshot_history import Key, ObservedStack
    from innoscope.sampling.snapshot_series import SnapshotSource
    from innoscope.target.model import Target

_log = logging.getLogger(__name__)

#: Seconds between snapshots.
INTERVAL_S: Final = 0.5
#: Minimum number of snapshots. A single snapshot cannot give percentages.
MIN_SNAPSHOTS: Final = 4
#: Minimum pause after MIN_SNAPSHOTS snapshots, as a multiple of the last snapshot's duration, so that servers
#: with 10,000 threads are sampled less often. Until then, the minimum pause is only as long as the snapshot,
#: because on a slow host the first snapshot takes seconds to load the symbols.
_PAUSE_FACTOR: Final = 20
#: Seconds until the retry after a failure.
_RETRY_S: Final = 5.0
#: Maximum number of files in the evidence. The most frequent ones are reported.
_MAX_FILES: Final = 100
#: Maximum number of snapshots whose files are stored.
_MAX_SNAPSHOTS: Final = 2_000

_FILE_CALLS: Final = descriptors.file_calls()


class SnapshotLoop:
    """Takes snapshots until closed, at least ``interval_s`` seconds apart, and stores them in ``history``.

    ``open_engine`` creates the sampling engine. The call is slow, so it runs on the background thread.
    """

    def __init__(
        self,
        target: Target,
        open_engine: Callable[[Target], SnapshotSource],
        lock_owners: LockOwners | None = None,
        history: SnapshotHistory | None = None,
        interval_s: float = INTERVAL_S,
    ) -> None:
        self._target = target
        self._lock_owners = lock_owners
        self._owners_lock = threading.Lock()
        self._open_engine = open_engine
        self._interval_s = interval_s
        self.history = history or SnapshotHistory()
        self._kinds: dict[int, str] = {}
        self._files: deque[tuple[float, Counter[tuple[str, str]]]] = deque(maxlen=_MAX_SNAPSHOTS)
        self._labels: dict[int, tuple[tuple[Frame, ...], tuple[str, ...]]] = {}
        self._missing: MissingSource | None = None
        self._period_s = interval_s
        self._ended = threading.Event()
        self._tried = threading.Event()
        self._thread = threading.Thread(target=self._work, name="snapshots", daemon=True)
        self._thread.start()

    def kinds(self) -> Mapping[int, str]:
        """Return the kind of each thread in the last snapshot, by thread id as in /proc."""
        return self._kinds

    def wait_for_first(self) -> None:
        """Wait until the first snapshot is complete or has failed, or until the loop is closed."""
        self._tried.wait()

    @property
    def failure(self) -> MissingSource | None:
        """Return the reason why snapshots currently fail, or None."""
        return self._missing

    @property
    def period_s(self) -> float:
        """Return the total duration of the last snapshot and the pause after it, in seconds."""
        return self._period_s

    def between(
        self, begin: float, end: float
    ) -> tuple[
        tuple[SnapshotSummary, ...], tuple[ObservedStack, ...], tuple[OnFile, ...], MissingSource | None
    ]:
        """Return the snapshots, stacks and files between two Unix times.

        The last item is the reason why there are no snapshots, or None.
        """
        snapshots, seen = self.history.between(begin, end)
        counts: Counter[tuple[str, str]] = Counter()
        for at, files in tuple(self._files):
            if begin <= at <= end:
                counts.update(files)
        found = [OnFile(wait, path, count) for (wait, path), count in counts.most_common(_MAX_FILES)]
        return snapshots, seen, tuple(found), None if snapshots else self._missing

    def close(self) -> None:
        """Stop the loop, and wait for a snapshot in progress."""
        self._ended.set()
        self._thread.join()
        self._tried.set()

    def _work(self) -> None:
        while not self._ended.is_set():
            try:
                self._take_snapshots(self._open_engine(self._target))
            except BaseException as error:  # includes Rust panics; must not stop the other sources
                reason, words = explain(error)
                if not isinstance(error, Exception):
                    _log.error("cannot take snapshots: %s", words)
                remedy = error.remedy if isinstance(error, InnoscopeError) else None
                self._missing = MissingSource(reason, words, remedy)
                self._tried.set()
                self._ended.wait(_RETRY_S)

    def _take_snapshots(self, source: SnapshotSource) -> None:
        """Take snapshots until closed, but at least one, even if ``close`` is called before it."""
        taken = 0
        while not (taken and self._ended.is_set()):
            began = time.monotonic()
            snapshot = source.take_snapshot()
            self._note_owners(snapshot)
            self._add(snapshot)
            self._missing = None
            self._tried.set()
            taken += 1
            seconds = time.monotonic() - began
            factor = _PAUSE_FACTOR if taken >= MIN_SNAPSHOTS else 1
            pause_s = max(self._interval_s, factor * seconds)
            self._period_s = seconds + pause_s
            self._ended.wait(pause_s)

    def hold(self, lock_owners: LockOwners | None) -> LockOwners | None:
        """Record lock owners in ``lock_owners``, or stop if it is None. Return the previous object."""
        with self._owners_lock:
            before, self._lock_owners = self._lock_owners, lock_owners
            return before

    def _note_owners(self, snapshot: Snapshot) -> None:
        """Record the lock owners. Call this immediately after the snapshot, because owners change quickly."""
        with self._owners_lock:
            if self._lock_owners is not None:
                self._lock_owners.note(snapshot)

    def _add(self, snapshot: Snapshot) -> None:
        threads: Counter[tuple[str, str]] = Counter()
        files: Counter[tuple[str, str]] = Counter()
        last: dict[Key, list[int]] = {}
        kinds: dict[int, str] = {}
        busy: list[int] = []
        same_pid_namespace = any(thread.tid == self._target.pid for thread in snapshot.threads)
        for thread in snapshot.threads:
            functions = self._functions(thread)
            kind = default_kinds().of(thread.frames, thread.comm).name
            threads[kind, thread.wait] += 1
            last.setdefault((kind, thread.wait, functions), []).append(thread.ns_tid)
            kinds[thread.tid if same_pid_namespace else thread.ns_tid] = kind
            if kind == CLIENT and thread.wait == "on_cpu":
                busy.append(thread.ns_tid)
            if (path := self._path(thread)) is not None:
                files[thread.wait, path] += 1
        self._kinds = kinds
        if files:
            self._files.append((snapshot.taken_at, files))
        self.history.add(
            SnapshotSummary(snapshot.taken_at, threads, tuple(busy[:TIDS_KEPT]), doing(last)), last
        )

    def _path(self, thread: Thread) -> str | None:
        """Return the path of the file that the thread is reading, writing or syncing, or None.

        The path is relative to the data directory if the file is in it, else absolute as the server sees it.
        """
        if thread.syscall not in _FILE_CALLS:
            return None
        try:
            path = Path(f"/proc/{self._target.pid}/fd/{thread.argument}").readlink()
            root = Path(f"/proc/{self._target.pid}/root").readlink()
        except OSError:
            return None
        if not path.is_absolute():
            return None
        if path.is_relative_to(root):
            path = Path("/") / path.relative_to(root)
        home = self._target.datadir
        return str(path.relative_to(home) if home and path.is_relative_to(home) else path)

    def _functions(self, thread: Thread) -> tuple[str, ...]:
        """Return the labels of the thread's frames.

        The labels are cached by the identity of the frame tuple, because equal stacks share one tuple.
        """
        known = self._labels.get(id(thread.frames))
        if known is None:
            if len(self._labels) >= MAX_STACKS:
                self._labels.clear()
            known = (thread.frames, tuple(frame.label for frame in thread.frames))
            self._labels[id(thread.frames)] = known
        return known[1]
