"""Count threads over many snapshots of a server under a known load, for tests of completeness and of waits.

Several tests share one observation, so it is made once per session. The servers run one at a time.
"""

from __future__ import annotations

import time
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from innoscope.sampling.engine import Engine
from innoscope.sampling.model import Snapshot, Thread, Trust
from innoscope.target.discover import find_one
from servers import SERVERS, Server
from workloads import WORKLOADS, TableScan

if TYPE_CHECKING:
    from collections.abc import Iterable

    from workloads import Workload

#: Flags in /proc/PID/task/TID/stat of io_uring and vhost threads: kernel threads without a user-space stack.
_PF_IO_WORKER: Final = 0x10
_PF_USER_WORKER: Final = 0x4000

#: Outermost functions of a complete stack: the start of a thread or of the program.
ROOTS: Final = frozenset({"start_thread", "clone", "__clone", "clone3", "__clone3", "_start"})

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

#: Maximum seconds for the snapshots under one load, on a busy machine.
_LONGEST_S: Final = 30

#: Options for servers that do not report the thread of a connection: each connection gets a new thread, so
#: threads start in the order of the connections.
_THREAD_EACH: Final = ("--thread-cache-size=0",)

#: Number of different stacks that are stored for the error message of a failed test.
_EXAMPLES: Final = 5


@dataclass(slots=True)
class Observation:
    """Sums over all snapshots of one server under one load. ``affected`` are the threads of the load."""

    snapshots: int = 0
    #: Trust of the threads that were on a CPU.
    running: Counter[Trust] = field(default_factory=Counter)
    #: Trust of the threads that were not on a CPU.
    at_rest: Counter[Trust] = field(default_factory=Counter)
    #: Stacks shown as complete although the outermost function does not start a thread.
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
        """Return examples of these trust levels or wait classes as text."""
        return "\n".join(
            f"  {key} {count}× {text}" for key in keys for text, count in self.examples.get(key, {}).items()
        )


def _ran(thread: Thread) -> bool:
    """Return whether the thread was on a CPU: sampled (even if too deep for the sample) or stale."""
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
        """Return the server, started with these options; stop the previous one."""
        if self._running != (name, options) or self._server is None or not self._server.running:
            self.close()
            own = () if SERVERS[name].os_thread_sql else _THREAD_EACH
            self._server = self._stack.enter_context(Server(name, options=(*options, *own)))
            self._running = name, options
            self._own = _without_connections(self._server)
        return self._server

    def observe(self, name: str, load: str) -> Observation:
        """Return the observation of that server under that load."""
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
        affected = self.affected(workload) if workload else frozenset()
        seen = Observation()
        deadline = time.monotonic() + _LONGEST_S
        while seen.snapshots < plan.snapshots and time.monotonic() < deadline:
            seen.add(engine.take_snapshot(), affected)
            time.sleep(plan.pause_s)
        return seen

    def affected(self, workload: Workload) -> frozenset[int]:
        """Return the threads of the load, as the server reports them. Stacks are not used to find them.

        MySQL before 5.7 reports no thread ids. Its single accepting thread numbers the connections and
        creates a thread for each one, so the threads start in the order of the connection ids.
        """
        threads = workload.os_threads()
        if threads is not None:
            return frozenset(threads)
        assert self._server is not None
        listed = workload.sql("SELECT ID FROM information_schema.PROCESSLIST WHERE USER = 'root'")
        connections = sorted(row[0] for row in listed)
        started = sorted(set(tasks(self._server.pid)) - self._own, key=lambda tid: _age(self._server, tid))
        assert len(started) == len(connections), "a connection began or ended meanwhile"
        threads_of = dict(zip(connections, started, strict=True))
        return frozenset(threads_of[connection] for connection in workload.connection_ids())


def tasks(pid: int) -> list[int]:
    """Return the thread ids of a process."""
    return [int(task.name) for task in Path(f"/proc/{pid}/task").iterdir()]


def _age(server: Server | None, tid: int) -> tuple[int, int]:
    """Return a key to sort threads by start: clock ticks, then the thread id, which wraps at pid_max."""
    assert server is not None
    stat = Path(f"/proc/{server.pid}/task/{tid}/stat").read_text()
    most = int(Path("/proc/sys/kernel/pid_max").read_text())
    return int(stat.rpartition(")")[2].split()[19]), (tid - server.pid) % most


def _without_connections(server: Server) -> frozenset[int]:
    """Return the server's own threads, once the connections made at its start are closed."""
    deadline = time.monotonic() + 10
    before = frozenset(tasks(server.pid))
    while time.monotonic() < deadline:
        time.sleep(0.3)
        now = frozenset(tasks(server.pid))
        if now == before:
            break
        before = now
    return before
