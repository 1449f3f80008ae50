"""Take snapshots of all threads of a live server, and assign a wait class to each thread."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from innoscope import _native
from innoscope.sampling import descriptors, fitted_program
from innoscope.sampling.classify import WaitClassifier, default_classifier
from innoscope.sampling.missing_names import missing_names
from innoscope.sampling.model import Snapshot, Thread, Trust
from innoscope.target.discover import still_same
from innoscope.target.native_errors import gone, translating

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from innoscope._native import Frame, ModuleInfo, RawSnapshot, RawThread
    from innoscope.target.model import Query, Target

#: Maximum number of cached wait classes, in addition to two per thread. Beyond that, the cache is cleared to
#: bound its memory.
SPARE_WAITS = 64
#: Maximum stack bytes per snapshot for callers that take many snapshots: enough for 4,500 threads of 14 KB.
MOST_BYTES = 64_000_000
_RUNNING = frozenset({Trust.ON_CPU, Trust.STALE})
_STOPPED = frozenset("Tt")  # state letters of /proc/PID/stat


class NativeProcess(Protocol):
    """The part of ``_native.Process`` that ``Engine`` needs."""

    method: str

    def take_snapshot(self) -> RawSnapshot:
        """Take a snapshot."""

    def run_counts(self, tids: Sequence[int]) -> dict[int, int]:
        """Return the current run counts of threads."""

    def copied_run_counts(self, tids: Sequence[int]) -> dict[int, int]:
        """Return the run counts of the threads that the last snapshot copied off the CPU."""

    def modules(self) -> list[ModuleInfo]:
        """Return the ELF files that are mapped as executable."""


class Engine:
    """A source of snapshots of one server. Not thread-safe.

    One snapshot copies at most ``most_bytes`` of stacks. Beyond this limit, stacks are truncated; the
    affected threads differ between snapshots. ``debug_files`` maps build-ids to downloaded debug files.
    ``debug_dirs`` are searched before /usr/lib/debug. All errors are raised as InnoscopeError.
    """

    def __init__(
        self,
        target: Target,
        *,
        method: str = "auto",
        inlines: bool = False,
        kernel: bool = False,
        debug_files: Mapping[str, str] | None = None,
        debug_dirs: Sequence[str] = (),
        most_bytes: int | None = None,
    ) -> None:
        with translating(target.pid):
            process = fitted_program.open_process(
                lambda kept: _native.Process(
                    target.pid,
                    method=method,
                    debug_dirs=(*debug_dirs, "/usr/lib/debug"),
                    debug_files=debug_files or {},
                    inlines=inlines,
                    kernel=kernel,
                    fitted=kept,
                    most_bytes=most_bytes,
                ),
                kernel=kernel,
            )
        self._set_up(target, process, default_classifier())

    @classmethod
    def of(cls, target: Target, process: NativeProcess, classifier: WaitClassifier) -> Engine:
        """Return an engine for a process that is not live, for tests and replays."""
        engine = cls.__new__(cls)
        engine._set_up(target, process, classifier)
        return engine

    def _set_up(self, target: Target, process: NativeProcess, classifier: WaitClassifier) -> None:
        self.target = target
        self._process = process
        self._classifier = classifier
        self._waits: dict[tuple[int, int, str | None, str, bool, bool], str] = {}
        self._last: dict[RawThread, Thread] = {}
        self._advice: tuple[str, ...] | None = None
        self._names = descriptors.syscall_names()
        self._file_calls = descriptors.file_calls()

    @property
    def method(self) -> str:
        """Return the method in use: bpf, bpf-nosleep, procfs or ptrace."""
        return self._process.method

    def modules(self) -> list[ModuleInfo]:
        """Return the ELF files that are mapped as executable, with the sources of their symbols."""
        with translating(self.target.pid):
            return self._process.modules()

    def run_counts(self, tids: Sequence[int]) -> dict[int, int]:
        """Return the current run counts of threads. A count changes whenever the thread runs."""
        return self._process.run_counts(tids)

    def copied_run_counts(self, tids: Sequence[int]) -> dict[int, int]:
        """Return each thread's run count as of its copy in the last snapshot, except for threads on a CPU.

        A thread with the same count before or after the snapshot did not run in between.
        """
        return self._process.copied_run_counts(tids)

    def take_snapshot(self) -> Snapshot:
        """Copy, unwind, symbolize and classify every thread. Raise NoSuchProcess if the server has exited."""
        taken_at = time.time()
        with translating(self.target.pid):
            raw = self._process.take_snapshot()
        if not raw.threads or not self._same_process():
            raise gone(self.target.pid)
        return Snapshot(
            target=self.target,
            method=raw.method,
            taken_at=taken_at,
            duration_ms=raw.copy_ns / 1e6,
            threads=self._threads(raw),
            notes=self._notes(raw),
            shallow=raw.shallow,
        )

    def _same_process(self) -> bool:
        return still_same(self.target)

    def _threads(self, snapshot: RawSnapshot) -> tuple[Thread, ...]:
        """Return the classified threads. An unchanged thread is the same object as in the last snapshot.

        A thread in a system call on a file that is not a socket is always a new object, because its
        descriptor may refer to another file than in the last snapshot.
        """
        last = self._last
        raw_threads = snapshot.threads
        kinds = self._kinds(raw_threads)
        if len(self._waits) > 2 * len(raw_threads) + SPARE_WAITS:
            self._waits.clear()
        fresh: dict[RawThread, Thread] = {}
        for raw in raw_threads:
            kind = kinds.get(raw.argument) if raw.syscall in self._file_calls else None
            thread = last.get(raw)
            if thread is None or kind not in (None, "socket"):
                thread = self._thread(raw, snapshot.stacks[raw.stack], kind)
            fresh[raw] = thread
        self._last = fresh
        return tuple(fresh.values())

    def _kinds(self, raw_threads: Sequence[RawThread]) -> dict[int, str]:
        """Return ``{descriptor: kind}`` of the files that threads are accessing in a system call."""
        wanted = {raw.argument for raw in raw_threads if raw.syscall in self._file_calls}
        return descriptors.kinds(self.target.pid, wanted) if wanted else {}

    def _thread(self, raw: RawThread, frames: tuple[Frame, ...], kind: str | None) -> Thread:
        trust, syscall, comm = Trust(raw.trust), raw.syscall, raw.comm
        running = raw.state == "R" or trust in _RUNNING
        key = (raw.stack, syscall, kind, comm, running, trust is Trust.STALE)
        wait = self._waits.get(key)
        if wait is None:
            wait = self._waits[key] = self._classifier.classify(
                frames,
                comm=comm,
                syscall=self._names.get(syscall),
                file=kind,
                running=running,
                stale=trust is Trust.STALE,
            )
        in_call = syscall >= 0
        return Thread(
            raw.tid,
            raw.ns_tid,
            comm,
            raw.state,
            trust,
            wait,
            frames,
            syscall if in_call else None,
            argument=raw.argument if in_call else None,
        )

    def _notes(self, snapshot: RawSnapshot) -> tuple[str, ...]:
        """Return the Rust core's notes, and notes on a stopped server and on missing function names."""
        notes = [*snapshot.notes]
        if all(raw.state in _STOPPED for raw in snapshot.threads):
            notes.append(
                f"the server is stopped, perhaps by a debugger that was killed: kill -CONT {self.target.pid}"
            )
        if self._advice is None:
            self._advice = missing_names(self.target, self._process.modules, snapshot.stacks.values())
        return (*notes, *self._advice)


def attach_queries(snapshot: Snapshot, queries: Mapping[int, Query]) -> Snapshot:
    """Return the snapshot with each thread's query attached. The keys of ``queries`` are ``ns_tid`` ids."""
    threads = tuple(
        [
            replace(thread, query=queries[thread.ns_tid]) if thread.ns_tid in queries else thread
            for thread in snapshot.threads
        ]
    )
    return replace(snapshot, threads=threads)
