"""Many looks at a server under a known load, counted: what completeness, running and wait classes judge.

One observation serves several tests, so it is made once per session; the servers run one at a time.
"""

from __future__ import annotations

import time
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from innoscope.sampling.engine import Engine
from innoscope.sampling.model import Dump, Thread, Trust
from innoscope.target.discover import find_one
from servers import SERVERS, Server
from workloads import WORKLOADS, TableScan

if TYPE_CHECKING:
    from collections.abc import Iterable

    from workloads import Workload

#: In /proc/PID/task/TID/stat: the kernel's own io_uring and vhost threads, which have no stack in user space.
_PF_IO_WORKER: Final = 0x10
_PF_USER_WORKER: Final = 0x4000

#: Where a stack may begin: a thread's start, the program's, or glibc's way there.
ROOTS: Final = frozenset({"start_thread", "clone", "__clone", "clone3", "__clone3", "_start"})

#: No load at all: the server's own threads and nobody else.
QUIET: Final = "quiet"


@dataclass(frozen=True, slots=True)
class Plan:
    """How many connections, how many looks, and the pause between two of them."""

    connections: int
    looks: int
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
    "table_scan": Plan(8, 60, 0.02),  # the last: its server has options of its own
}

#: Seconds that the looks under one load may take, whatever the machine is busy with.
_LONGEST_S: Final = 30

#: A server that does not tell which thread is whose connection: then each connection is a new thread.
_THREAD_EACH: Final = ("--thread-cache-size=0",)

#: Unlike stacks kept for a failure's message.
_EXAMPLES: Final = 5


@dataclass(slots=True)
class Observation:
    """All looks at one server under one load, added up. ``affected`` threads are those the load is about."""

    looks: int = 0
    #: Threads that were on a CPU: how they were shown.
    running: Counter[Trust] = field(default_factory=Counter)
    #: Threads that were not.
    at_rest: Counter[Trust] = field(default_factory=Counter)
    #: The kernel's own threads in this process, in neither of them.
    kernel_threads: int = 0
    #: Shown as complete although the outermost function is not the start of a thread.
    rootless: Counter[str] = field(default_factory=Counter)
    waits: Counter[str] = field(default_factory=Counter)
    examples: dict[str, Counter[str]] = field(default_factory=dict)
    notes: set[str] = field(default_factory=set)

    def add(self, dump: Dump, affected: frozenset[int]) -> None:
        """One more look."""
        self.looks += 1
        self.notes |= set(dump.notes)
        for thread in dump.threads:
            if _is_kernels(dump.target.pid, thread):
                self.kernel_threads += 1
                continue
            (self.running if _ran(thread) else self.at_rest)[thread.trust] += 1
            if thread.trust not in (Trust.EXACT, Trust.ON_CPU):
                self._keep(thread.trust, thread)
            elif not thread.frames or thread.frames[-1].function not in ROOTS:
                self.rootless[picture(thread)] += 1
            if thread.ns_tid in affected:
                self.waits[thread.wait] += 1
                self._keep(thread.wait, thread)

    def _keep(self, key: str, thread: Thread) -> None:
        seen = self.examples.setdefault(key, Counter())
        text = picture(thread)
        if text in seen or len(seen) < _EXAMPLES:
            seen[text] += 1

    def shown(self, keys: Iterable[str]) -> str:
        """Examples of these trust levels or wait classes, for a person."""
        return "\n".join(
            f"  {key} {count}× {text}" for key in keys for text, count in self.examples.get(key, {}).items()
        )


def _ran(thread: Thread) -> bool:
    """Whether it was on a CPU: sampled, stale, or sampled with a stack too deep for the sample."""
    return thread.trust in (Trust.ON_CPU, Trust.STALE) or (
        thread.state == "R" and thread.trust in (Trust.TRUNCATED, Trust.INCOMPLETE)
    )


def _is_kernels(pid: int, thread: Thread) -> bool:
    if not thread.comm.startswith("iou-"):
        return False
    try:
        stat = Path(f"/proc/{pid}/task/{thread.tid}/stat").read_text()
    except OSError:
        return True  # they come and go
    return bool(int(stat.rpartition(")")[2].split()[6]) & (_PF_IO_WORKER | _PF_USER_WORKER))


def picture(thread: Thread) -> str:
    """A thread in one line."""
    frames = " < ".join(frame.label for frame in thread.frames)
    return f"{thread.comm} {thread.state} {thread.trust} syscall {thread.syscall}: {frames}"


class Observatory:
    """Observations by server and load, each made at the first question."""

    def __init__(self) -> None:
        self._done: dict[tuple[str, str], Observation] = {}
        self._stack = ExitStack()
        self._server: Server | None = None
        self._running: tuple[str, tuple[str, ...]] = ("", ())
        self._own: frozenset[int] = frozenset()

    def close(self) -> None:
        """Stop the server that runs."""
        self._stack.close()
        self._server = None

    def server(self, name: str, options: tuple[str, ...] = ()) -> Server:
        """The server, started with these options; the one before it is stopped."""
        if self._running != (name, options) or self._server is None or not self._server.running:
            self.close()
            own = () if SERVERS[name].os_thread_sql else _THREAD_EACH
            self._server = self._stack.enter_context(Server(name, options=(*options, *own)))
            self._running = name, options
            self._own = _without_connections(self._server)
        return self._server

    def observe(self, name: str, load: str) -> Observation:
        """The looks at that server under that load."""
        if (name, load) not in self._done:
            server = self.server(name, TableScan.server_options if load == TableScan.name else ())
            plan = PLANS[load]
            if load == QUIET:
                self._done[name, load] = self._look(server, plan, None)
            else:
                with WORKLOADS[load](server, plan.connections) as workload:
                    self._done[name, load] = self._look(server, plan, workload)
        return self._done[name, load]

    def _look(self, server: Server, plan: Plan, workload: Workload | None) -> Observation:
        engine = Engine(find_one(server.pid), method="bpf")
        affected = self.affected(workload) if workload else frozenset()
        seen = Observation()
        deadline = time.monotonic() + _LONGEST_S
        while seen.looks < plan.looks and time.monotonic() < deadline:
            seen.add(engine.look(), affected)
            time.sleep(plan.pause_s)
        return seen

    def affected(self, workload: Workload) -> frozenset[int]:
        """The threads that the load is about, told by the server and not by their stacks.

        MySQL before 5.7 knows no thread ids. Its only accepting thread numbers the connections and makes a
        thread for each, so the order of the connections is that of the threads.
        """
        threads = workload.os_threads()
        if threads is not None:
            return frozenset(threads)
        assert self._server is not None
        listed = workload.sql("SELECT ID FROM information_schema.PROCESSLIST WHERE USER = 'root'")
        connections = sorted(row[0] for row in listed)
        started = sorted(set(tasks(self._server.pid)) - self._own, key=lambda tid: _age(self._server, tid))
        assert len(started) == len(connections), "a connection came or went in between"
        threads_of = dict(zip(connections, started, strict=True))
        return frozenset(threads_of[connection] for connection in workload.connection_ids())


def tasks(pid: int) -> list[int]:
    """The thread ids of a process."""
    return [int(task.name) for task in Path(f"/proc/{pid}/task").iterdir()]


def _age(server: Server | None, tid: int) -> tuple[int, int]:
    """Sorts threads by their start: clock ticks, then thread ids, which begin again at pid_max."""
    assert server is not None
    stat = Path(f"/proc/{server.pid}/task/{tid}/stat").read_text()
    most = int(Path("/proc/sys/kernel/pid_max").read_text())
    return int(stat.rpartition(")")[2].split()[19]), (tid - server.pid) % most


def _without_connections(server: Server) -> frozenset[int]:
    """The server's own threads, once the connections of its start are gone."""
    deadline = time.monotonic() + 10
    before = frozenset(tasks(server.pid))
    while time.monotonic() < deadline:
        time.sleep(0.3)
        now = frozenset(tasks(server.pid))
        if now == before:
            break
        before = now
    return before
