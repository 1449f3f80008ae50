"""Looks at all threads, over and over on a thread of its own, added up by stack."""

from __future__ import annotations

import threading
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Final

from innoscope.collectors.kinds import default_kinds
from innoscope.collectors.runner import explain
from innoscope.diagnose.evidence import CLIENT, Look, Missing, OnFile, Seen
from innoscope.errors import InnoscopeError
from innoscope.stacks import descriptors

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from innoscope.diagnose.holding import Holding
    from innoscope.stacks.model import Dump, Frame, Thread
    from innoscope.target.model import Target

#: Seconds between two looks, and how many times its own length the rest after a look is at least: a crowd of
#: 10,000 threads is looked at less often.
_INTERVAL_S: Final = 0.5
_REST: Final = 20
#: Distinct stacks that are kept; each is some kilobytes in an incident file.
_STACKS_KEPT: Final = 2_000
#: Files that are told, those at which most threads were seen.
_FILES_KEPT: Final = 100
#: Thread ids kept of one stack.
_TIDS_KEPT: Final = 50

_FILE_CALLS: Final = descriptors.file_calls()

_Key = tuple[str, str, tuple[str, ...]]


class Looker:
    """Looks until it is closed. ``open_eyes`` makes the engine, on this thread: learning names takes time."""

    def __init__(
        self, target: Target, open_eyes: Callable[[Target], object], holding: Holding | None = None
    ) -> None:
        self._target = target
        self._holding = holding
        self._open_eyes = open_eyes
        self._looks: list[Look] = []
        self._counts: Counter[_Key] = Counter()
        self._last: dict[_Key, list[int]] = {}
        self._kinds: dict[int, str] = {}
        self._files: Counter[tuple[str, str]] = Counter()
        self._labels: dict[int, tuple[tuple[Frame, ...], tuple[str, ...]]] = {}
        self._missing: Missing | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._work, name="looks", daemon=True)
        self._thread.start()

    def kinds(self) -> Mapping[int, str]:
        """``{thread id as in /proc: kind}`` as of the last look."""
        return self._kinds

    @property
    def looks(self) -> tuple[Look, ...]:
        """Those so far."""
        return tuple(self._looks)

    @property
    def is_looking(self) -> bool:
        """Whether there may be more looks: it did not fail."""
        return self._thread.is_alive()

    def close(self) -> tuple[tuple[Look, ...], tuple[Seen, ...], tuple[OnFile, ...], Missing | None]:
        """End, and tell what was seen, at which files; why nothing was, if so."""
        self._ended.set()
        self._thread.join()
        seen = [
            Seen(
                kind, wait, functions, count, tuple(self._last.get((kind, wait, functions), ())[:_TIDS_KEPT])
            )
            for (kind, wait, functions), count in self._counts.most_common(_STACKS_KEPT)
        ]
        files = [OnFile(wait, path, count) for (wait, path), count in self._files.most_common(_FILES_KEPT)]
        return tuple(self._looks), tuple(seen), tuple(files), self._missing if not self._looks else None

    def _work(self) -> None:
        try:
            eyes = self._open_eyes(self._target)
            while not self._ended.is_set():
                began = time.monotonic()
                dump: Dump = eyes.look()  # type: ignore[attr-defined]
                self._note(dump)
                self._take(dump)
                self._ended.wait(max(_INTERVAL_S, _REST * (time.monotonic() - began)))
        except Exception as error:  # the rest of the evidence goes on without it
            reason, words = explain(error)
            remedy = error.remedy if isinstance(error, InnoscopeError) else None
            self._missing = Missing(reason, words, remedy)

    def _note(self, dump: Dump) -> None:
        """Who holds what, at once: owners change."""
        if self._holding is not None:
            self._holding.note(dump)

    def _take(self, dump: Dump) -> None:
        threads: Counter[tuple[str, str]] = Counter()
        last: dict[_Key, list[int]] = {}
        kinds: dict[int, str] = {}
        running: list[int] = []
        as_seen = any(thread.tid == self._target.pid for thread in dump.threads)
        for thread in dump.threads:
            functions = self._functions(thread)
            kind = default_kinds().of(thread.frames, thread.comm).name
            threads[kind, thread.wait] += 1
            last.setdefault((kind, thread.wait, functions), []).append(thread.ns_tid)
            kinds[thread.tid if as_seen else thread.ns_tid] = kind
            if kind == CLIENT and thread.wait == "on_cpu":
                running.append(thread.ns_tid)
            if (path := self._path(thread)) is not None:
                self._files[thread.wait, path] += 1
        for key, tids in last.items():
            self._counts[key] += len(tids)
        self._last, self._kinds = last, kinds
        self._looks.append(Look(dump.taken_at, threads, tuple(running[:_TIDS_KEPT])))

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
            if len(self._labels) >= _STACKS_KEPT:
                self._labels.clear()
            known = (thread.frames, tuple(frame.label for frame in thread.frames))
            self._labels[id(thread.frames)] = known
        return known[1]
