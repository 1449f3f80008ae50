"""Looks at all threads, over and over on a thread of its own, added up by stack."""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from pathlib import Path
from typing import TYPE_CHECKING, Final

from innoscope.common.errors import InnoscopeError
from innoscope.diagnose.evidence import Missing, OnFile
from innoscope.metrics.collectors.kinds import default_kinds
from innoscope.metrics.collectors.runner import explain
from innoscope.sampling import descriptors
from innoscope.sampling.snapshot_history import CLIENT, MOST_STACKS, TIDS_KEPT, Look, Looks

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from innoscope.memory.locks.owners import LockOwners
    from innoscope.metrics.collectors.waits import Eyes
    from innoscope.sampling.model import Dump, Frame, Thread
    from innoscope.sampling.snapshot_history import Key, Seen
    from innoscope.target.model import Target

#: Seconds between two looks, and how many times its own length the rest after a look is at least: a crowd of
#: 10,000 threads is looked at less often.
INTERVAL_S: Final = 0.5
_REST: Final = 20
#: Seconds until the next try after what made looks fail.
_RETRY_S: Final = 5.0
#: Files that are told, those at which most threads were seen, and looks whose files are kept.
_FILES_KEPT: Final = 100
_LOOKS_KEPT: Final = 2_000

_FILE_CALLS: Final = descriptors.file_calls()


class Looker:
    """Looks until it is closed. ``open_eyes`` makes the engine, on its thread: learning names takes time.

    ``kept`` takes in the looks; there is one every ``interval_s`` seconds.
    """

    def __init__(
        self,
        target: Target,
        open_eyes: Callable[[Target], Eyes],
        lock_owners: LockOwners | None = None,
        kept: Looks | None = None,
        interval_s: float = INTERVAL_S,
    ) -> None:
        self._target = target
        self._lock_owners = lock_owners
        self._noting = threading.Lock()
        self._open_eyes = open_eyes
        self._interval_s = interval_s
        self.looks = kept or Looks()
        self._kinds: dict[int, str] = {}
        self._files: deque[tuple[float, Counter[tuple[str, str]]]] = deque(maxlen=_LOOKS_KEPT)
        self._labels: dict[int, tuple[tuple[Frame, ...], tuple[str, ...]]] = {}
        self._missing: Missing | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._work, name="looks", daemon=True)
        self._thread.start()

    def kinds(self) -> Mapping[int, str]:
        """``{thread id as in /proc: kind}`` as of the last look."""
        return self._kinds

    @property
    def blind(self) -> Missing | None:
        """Why there are no looks at present."""
        return self._missing

    def between(
        self, begin: float, end: float
    ) -> tuple[tuple[Look, ...], tuple[Seen, ...], tuple[OnFile, ...], Missing | None]:
        """What was seen in that time, at which files; why nothing was, if so."""
        looks, seen = self.looks.between(begin, end)
        counts: Counter[tuple[str, str]] = Counter()
        for at, files in tuple(self._files):
            if begin <= at <= end:
                counts.update(files)
        told = [OnFile(wait, path, count) for (wait, path), count in counts.most_common(_FILES_KEPT)]
        return looks, seen, tuple(told), None if looks else self._missing

    def close(self) -> None:
        """End; a look that is under way is waited for."""
        self._ended.set()
        self._thread.join()

    def _work(self) -> None:
        while not self._ended.is_set():
            try:
                self._look(self._open_eyes(self._target))
            except Exception as error:  # the rest of the evidence goes on without it
                reason, words = explain(error)
                remedy = error.remedy if isinstance(error, InnoscopeError) else None
                self._missing = Missing(reason, words, remedy)
                self._ended.wait(_RETRY_S)

    def _look(self, eyes: Eyes) -> None:
        while not self._ended.is_set():
            began = time.monotonic()
            dump = eyes.look()
            self._note(dump)
            self._take(dump)
            self._missing = None
            self._ended.wait(max(self._interval_s, _REST * (time.monotonic() - began)))

    def hold(self, lock_owners: LockOwners | None) -> LockOwners | None:
        """From now on note there who holds what; the one that did it until now, at rest."""
        with self._noting:
            before, self._lock_owners = self._lock_owners, lock_owners
            return before

    def _note(self, dump: Dump) -> None:
        """Who holds what, at once: owners change."""
        with self._noting:
            if self._lock_owners is not None:
                self._lock_owners.note(dump)

    def _take(self, dump: Dump) -> None:
        threads: Counter[tuple[str, str]] = Counter()
        files: Counter[tuple[str, str]] = Counter()
        last: dict[Key, list[int]] = {}
        kinds: dict[int, str] = {}
        busy: list[int] = []
        as_seen = any(thread.tid == self._target.pid for thread in dump.threads)
        for thread in dump.threads:
            functions = self._functions(thread)
            kind = default_kinds().of(thread.frames, thread.comm).name
            threads[kind, thread.wait] += 1
            last.setdefault((kind, thread.wait, functions), []).append(thread.ns_tid)
            kinds[thread.tid if as_seen else thread.ns_tid] = kind
            if kind == CLIENT and thread.wait == "on_cpu":
                busy.append(thread.ns_tid)
            if (path := self._path(thread)) is not None:
                files[thread.wait, path] += 1
        self._kinds = kinds
        if files:
            self._files.append((dump.taken_at, files))
        self.looks.add(Look(dump.taken_at, threads, tuple(busy[:TIDS_KEPT])), last)

    def _path(self, thread: Thread) -> str | None:
        """The file that it reads, writes or syncs, as the server sees it; None if there is none."""
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
        """The labels of its frames, remembered by the frames' identity (the engine keeps equal ones once)."""
        known = self._labels.get(id(thread.frames))
        if known is None:
            if len(self._labels) >= MOST_STACKS:
                self._labels.clear()
            known = (thread.frames, tuple(frame.label for frame in thread.frames))
            self._labels[id(thread.frames)] = known
        return known[1]
