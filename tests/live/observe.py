"""Count threads over many snapshots of a server under a known load, for tests of completeness and of waits.

Several tests share each observation, which is made once per session. Only one server runs at a time.
"""

from __future__ import annotations

import time
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from clusters import first_node, server_of
from innoscope.sampling.engine import Engine
from innoscope.sampling.model import Snapshot, Thread, Trust
from innoscope.target.discover import find_one
from servers import SERVERS
from waiting import until
from workloads import WORKLOADS, TableScan

if TYPE_CHECKING:
    from collections.abc import Iterable

    from servers import Server
    from workloads import Workload

#: Flags in /proc/PID/task/TID/stat of io_uring and vhost threads: kernel threads without a user-space stack.
_PF_IO_WORKER: Final = 0x10
_PF_USER_WORKER: Final = 0x4000

#: Outermost functions of a complete stack: the start of a thread or of the program.
ROOTS: Final = frozenset({"start_thread", "clone", "__clone", "clone3", "__clone3", "_start"})

#: Servers with performance schema instrumentation enabled: threads then wait in different functions.
RECORDING: Final = {"performance-schema": "mariadb-10.11"}
_RECORD: Final = ("--performance-schema=ON", "--performance-schema-instrument=%=ON")

#: The name of the plan without a load, in which only the server's own threads run.
QUIET: Final = "quiet"


@dataclass(frozen=True, slots=True)
class Plan:
    """The number of connections and of snapshots, and the pause between two snapshots."""

    connections: int
    snapshots: int
    pause_s: float


PLANS: Final = {
    QUIET: Plan(0, 40, 0.02),
    "idle": Plan(150, 20, 0.02),
    "sleep": Plan(100, 20, 0.02),
    "row_lock": Plan(150, 20, 0.02),
    "metadata_lock": Plan(100, 20, 0.02),
    "update_storm": Plan(60, 60, 0.02),
    "cpu": Plan(8, 100, 0.01),
    "burn": Plan(8, 100, 0.01),
    "fsync": Plan(16, 60, 0.02),
    "table_scan": Plan(8, 60, 0.02),  # runs last, because it needs a server with other options
}

#: Maximum seconds for the snapshots under one load. The load can starve this process for a minute.
_LONGEST_S: Final = 120

#: Options for servers that do not report the thread of a connection: each connection gets a new thread, so
#: threads start in the order of the connections.
THREAD_EACH: Final = ("--thread-cache-size=0",)

#: Number of different stacks that are stored for the error message of a failed test.
_EXAMPLES: Final = 5


@dataclass(slots=True)
class Observation:
    """Thread counts, summed over all snapshots of one server under one load.

    ``waits`` counts only the threads of the load.
    """

    snapshots: int = 0
    #: Number of threads that were on a CPU, by trust level.
    running: Counter[Trust] = field(default_factory=Counter)
    #: Number of threads that were not on a CPU, by trust level.
    at_rest: Counter[Trust] = field(default_factory=Counter)
    #: Stacks shown as complete although the outermost function is not a thread or process entry point
    #: (``ROOTS``).
    rootless: Counter[str] = field(default_factory=Counter)
    waits: Counter[str] = field(default_factory=Counter)
    examples: dict[str, Counter[str]] = field(default_factory=dict)

    def add(self, snapshot: Snapshot, affected: frozenset[int]) -> None:
        """Add the threads of one snapshot to the sums."""
        self.snapshots += 1
        for thread in snapshot.threads:
            if _is_kernel_thread(snapshot.target.pid, thread):
                continue
            (self.running if _ran(thread) else self.at_rest)[thread.trust] += 1
            if thread.trust not in (Trust.EXACT, Trust.ON_CPU):
                self._keep(thread.trust, thread)
            elif not thread.frames or thread.frames[-1].function not in ROOTS:
                self.rootless[one_line(thread)] += 1
            if thread.ns_tid in affected:
                self.waits[thread.wait] += 1
                self._keep(thread.wait, thread)

    def _keep(self, key: str, thread: Thread) -> None:
        seen = self.examples.setdefault(key, Counter())
        text = one_line(thread)
        if text in seen or len(seen) < _EXAMPLES:
            seen[text] += 1

    def shown(self, keys: Iterable[str]) -> str:
        """Return example stacks for ``keys`` (trust levels or wait classes) as text."""
        return "\n".join(
            f"  {key} {count}× {text}" for key in keys for text, count in self.examples.get(key, {}).items()
        )


def _ran(thread: Thread) -> bool:
    """Return whether the thread was on a CPU: its stack was sampled (perhaps only in part) or is stale."""
    return thread.trust in (Trust.ON_CPU, Trust.STALE) or (
        thread.state == "R" and thread.trust in (Trust.TRUNCATED, Trust.INCOMPLETE)
    )


def _is_kernel_thread(pid: int, thread: Thread) -> bool:
    if not thread.comm.startswith("iou-"):
        return False
    try:
        stat = Path(f"/proc/{pid}/task/{thread.tid}/stat").read_text()
    except OSError:
        return True  # the thread has exited, as such threads may do at any time
    return bool(int(stat.rpartition(")")[2].split()[6]) & (_PF_IO_WORKER | _PF_USER_WORKER))


def one_line(thread: Thread) -> str:
    """Format a thread as one line."""
    frames = " < ".join(frame.label for frame in thread.frames)
    return f"{thread.comm} {thread.state} {thread.trust} syscall {thread.syscall}: {frames}"


class Observatory:
    """Observations by server and load, each made on first use."""

    def __init__(self) -> None:
        self._done: dict[tuple[str, str], Observation] = {}
        self._stack = ExitStack()
        self._server: Server | None = None
        self._running: tuple[str, tuple[str, ...]] = ("", ())
        self._own: frozenset[int] = frozenset()

    def close(self) -> None:
        """Stop the running server."""
        self._stack.close()
        self._server = None

    def server(self, name: str, options: tuple[str, ...] = ()) -> Server:
        """Return the server, or the cluster's first node, with ``options``; stop the previous one."""
        if self._running != (name, options) or self._server is None or not self._server.running:
            self.close()
            subject = RECORDING.get(name, name)
            own = () if SERVERS[server_of(subject)].os_thread_sql else THREAD_EACH
            record = _RECORD if name in RECORDING else ()
            self._server = self._stack.enter_context(first_node(subject, (*options, *own, *record)))
            self._running = name, options
            self._own = own_threads(self._server)
        return self._server

    def observe(self, name: str, load: str) -> Observation:
        """Return the observation of the server ``name`` under ``load``."""
        if (name, load) not in self._done:
            server = self.server(name, TableScan.server_options if load == TableScan.name else ())
            plan = PLANS[load]
            if load == QUIET:
                self._done[name, load] = self._take(server, plan, None)
            else:
                with WORKLOADS[load](server, plan.connections) as workload:
                    self._done[name, load] = self._take(server, plan, workload)
        return self._done[name, load]

    def _take(self, server: Server, plan: Plan, workload: Workload | None) -> Observation:
        engine = Engine(find_one(server.pid), method="bpf")
        threads = affected(server, self._own, workload) if workload else frozenset()
        seen = Observation()
        deadline = time.monotonic() + _LONGEST_S
        while seen.snapshots < plan.snapshots and time.monotonic() < deadline:
            seen.add(engine.take_snapshot(), threads)
            time.sleep(plan.pause_s)
        return seen


def affected(server: Server, own: frozenset[int], workload: Workload) -> frozenset[int]:
    """Return the threads of the load, as reported by the server and not derived from their stacks.

    MySQL before 5.7 reports no thread ids. Its single accepting thread numbers the connections and
    creates a thread for each one, so the threads start in the order of the connection ids. ``own`` contains
    the ids of the server's own threads, which serve no connection.
    """
    threads = workload.os_threads()
    if threads is not None:
        return frozenset(threads)
    listed = workload.sql("SELECT ID FROM information_schema.PROCESSLIST WHERE USER = 'root'")
    connections = sorted(row[0] for row in listed)
    # The threads of an earlier load's connections may still be about to exit.
    started = until(lambda: _started(server, own, len(connections)), lambda: (connections, tasks(server.pid)))
    threads_of = dict(zip(connections, started, strict=True))
    return frozenset(threads_of[connection] for connection in workload.connection_ids())


def _started(server: Server, own: frozenset[int], count: int) -> list[int]:
    """Return the threads that are not among ``own``, oldest first; empty unless there are ``count``."""
    try:
        found = sorted(set(tasks(server.pid)) - own, key=lambda tid: _age(server, tid))
    except OSError:  # a thread has exited
        return []
    return found if len(found) == count else []


def tasks(pid: int) -> list[int]:
    """Return the thread ids of a process."""
    return [int(task.name) for task in Path(f"/proc/{pid}/task").iterdir()]


def _age(server: Server, tid: int) -> tuple[int, int]:
    """Return a key that sorts threads by start time in clock ticks, then by id, which wraps at pid_max."""
    stat = Path(f"/proc/{server.pid}/task/{tid}/stat").read_text()
    most = int(Path("/proc/sys/kernel/pid_max").read_text())
    return int(stat.rpartition(")")[2].split()[19]), (tid - server.pid) % most


def own_threads(server: Server) -> frozenset[int]:
    """Return the server's own threads, after the connections made at its start have been closed."""
    deadline = time.monotonic() + 10
    before = frozenset(tasks(server.pid))
    while time.monotonic() < deadline:
        time.sleep(0.3)
        now = frozenset(tasks(server.pid))
        if now == before:
            break
        before = now
    return before
