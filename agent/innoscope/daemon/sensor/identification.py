"""Identify processes in worker threads, because a process's file system may never respond."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Final

from innoscope.common.workers import Job
from innoscope.target import discover

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from innoscope.common.supervision import Beat
    from innoscope.common.workers import Workers
    from innoscope.target.model import Target
    from innoscope.target.proc import ProcFs

#: Kind of the jobs that identify processes, and the seconds that a search for servers waits for them. A
#: process that takes longer is admitted by a later search.
_IDENTIFYING: Final = "identifying"
_IDENTIFY_S: Final = 1.0


class Identification:
    """The identification of one process, which runs as a job."""

    def __init__(self, proc: ProcFs, pid: int) -> None:
        self._proc, self._pid = proc, pid
        self._done = threading.Event()
        self._target: Target | None = None
        self._error: BaseException = RuntimeError("the thread died")

    def run(self) -> None:
        """Identify the process, and store the result or the error. Never raises."""
        try:
            self._target = discover.identify(self._proc, self._pid)
        except BaseException as error:  # including panics of the Rust core
            self._error = error
        self._done.set()

    def lost(self) -> None:
        """Mark the identification as ended because its thread died."""
        self._done.set()

    def wait(self, seconds: float) -> bool:
        """Wait up to ``seconds`` for the identification to end. Return whether it has ended."""
        return self._done.wait(seconds)

    def target(self) -> Target:
        """Return the identified server. Raise the error of a failed identification."""
        if self._target is None:
            raise self._error
        return self._target


class Identifier:
    """Starts identifications, and returns those that have ended. Only one thread may use it."""

    def __init__(self, proc: ProcFs, workers: Workers) -> None:
        self._proc, self._workers = proc, workers
        self._running: dict[int, Identification] = {}

    def ended(
        self, pids: Sequence[int], due: Collection[int], beat: Beat
    ) -> Iterator[tuple[int, Identification]]:
        """Start identifying the processes in ``due``. Yield the identifications of ``pids`` that have ended.

        Waits at most ``_IDENTIFY_S`` seconds, and only for identifications that this call has started.
        """
        for gone in self._running.keys() - set(pids):
            del self._running[gone]
        deadline = time.monotonic() + _IDENTIFY_S
        begun = [pid for pid in due if pid not in self._running]
        for pid in begun:
            identification = self._running[pid] = Identification(self._proc, pid)
            self._workers.submit(Job(_IDENTIFYING, str(pid), identification.run, identification.lost))
        for pid in [pid for pid in pids if pid in self._running]:
            beat()
            patience = max(0.0, deadline - time.monotonic()) if pid in begun else 0.0
            if self._running[pid].wait(patience):
                yield pid, self._running.pop(pid)
