"""Identify processes in worker threads, because a process's file system may never respond."""

from __future__ import annotations

import threading
import time
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

from innoscope.common.workers import Job
from innoscope.target import discover, endpoints
from innoscope.target.data_directory import data_directory_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

    from innoscope.common.supervision import Beat
    from innoscope.common.workers import Workers
    from innoscope.target.data_directory import DataDirectory
    from innoscope.target.model import Target
    from innoscope.target.proc import ProcFs

    Also: TypeAlias = Sequence[Callable[[Target], None]]

#: Kind of the jobs that identify processes.
IDENTIFYING: Final = "identifying"
#: Number of threads for these jobs.
IDENTIFYING_THREADS: Final = 8
#: Maximum number of one tenant's identifications that are running or waiting for a thread, except abandoned
#: ones. In addition, common/workers.py limits the threads of each tenant, so that tenants whose processes
#: never respond leave some for others.
_PER_TENANT: Final = 4
#: Maximum seconds that a search for servers waits for identifications. A process that takes longer is
#: admitted by a later search.
_IDENTIFY_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class Identified:
    """Facts about a server. Reading them may block on the server's file system or its memory.

    ``port_option`` is the port on the command line. ``working_directory`` is the path of the server's
    current directory, as the sensor sees it. ``listens`` tells whether the server listens on a port or a
    socket.
    """

    target: Target
    home: DataDirectory | None
    port_option: int | None
    working_directory: str | None
    listens: bool


class Identification:
    """The identification of one process. ``tenant`` is the owner of the process.

    An identification is expected to be quick. The job of one that hangs is therefore abandoned soon.
    """

    def __init__(self, proc: ProcFs, pid: int, tenant: str, ended: threading.Event, also: Also) -> None:
        self.job = Job(IDENTIFYING, str(pid), self._run, self._lost, tenant, slow_runs=0)
        self.tenant, self.done = tenant, False
        self._proc, self._pid, self._ended, self._also = proc, pid, ended, also
        self._found: Identified | None = None
        self._error: BaseException = RuntimeError("the thread died")

    def _run(self) -> None:
        """Identify the process, and store the result or the error. Never raise."""
        try:
            found = identify(self._proc, self._pid)
            for also in self._also:
                also(found.target)
            self._found = found
        except BaseException as error:  # including panics of the Rust core
            self._error = error
        self._lost()

    def _lost(self) -> None:
        """Mark the identification as ended."""
        self.done = True
        self._ended.set()

    def found(self) -> Identified:
        """Return the result. Raise the error of a failed identification."""
        if self._found is None:
            raise self._error
        return self._found


def identify(proc: ProcFs, pid: int) -> Identified:
    """Identify a server. This may block forever. Raise ProcessLookupError or PermissionError."""
    target = discover.identify(proc, pid)
    home = data_directory_of(proc, target)
    port = endpoints.option_port(proc.cmdline(pid)) if target.port is None else None
    listens = target.port is not None or endpoints.listens_on_socket(proc, pid)
    return Identified(target, home, port, proc.cwd(pid) if home is not None else None, listens)


class Identifier:
    """Starts identifications, and returns those that have ended. Only one thread may use it.

    ``tenant`` returns the owner of a process (server_selection.py). The functions in ``also`` are called in
    the worker thread when a process has been identified; they may block.
    """

    def __init__(
        self,
        proc: ProcFs,
        workers: Workers,
        tenant: Callable[[int], str],
        also: Also = (),
    ) -> None:
        self._proc, self._workers, self._tenant, self._also = proc, workers, tenant, also
        self._running: dict[int, Identification] = {}
        self._unfinished: list[Identification] = []  # including those of processes that have exited
        self._ended = threading.Event()

    def ended(
        self, pids: Sequence[int], due: Collection[int], beat: Beat
    ) -> Iterator[tuple[int, Identification]]:
        """Start identifying the processes in ``due``. Yield the identifications of ``pids`` that have ended.

        Wait at most ``_IDENTIFY_S`` seconds, and only for identifications that this call has started.
        """
        for gone in self._running.keys() - set(pids):
            del self._running[gone]
        deadline = time.monotonic() + _IDENTIFY_S
        waiting = [pid for pid in due if pid not in self._running]
        begun = set[int]()
        while True:
            beat()
            self._ended.clear()
            for pid in [pid for pid, one in self._running.items() if one.done]:
                yield pid, self._running.pop(pid)
            begun.update(self._start(waiting))
            begun.intersection_update(self._running)
            rest = deadline - time.monotonic()
            if not begun or rest <= 0 or not self._ended.wait(rest):
                return

    def _start(self, waiting: list[int]) -> list[int]:
        """Start identifications up to each tenant's limit. Move their pids from ``waiting`` to the result."""
        self._unfinished = [one for one in self._unfinished if not one.done]
        counts = Counter(one.tenant for one in self._unfinished if not one.job.abandoned)
        begun = []
        for pid in list(waiting):
            tenant = self._tenant(pid)
            if counts[tenant] >= _PER_TENANT:
                continue
            counts[tenant] += 1
            one = self._running[pid] = Identification(self._proc, pid, tenant, self._ended, self._also)
            self._unfinished.append(one)
            self._workers.submit(one.job)
            waiting.remove(pid)
            begun.append(pid)
        return begun
