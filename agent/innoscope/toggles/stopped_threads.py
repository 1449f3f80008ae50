"""Detect stopped threads and their tracers from /proc, because the server may not respond to SQL."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

from innoscope.target import process_users

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from innoscope.target.proc import ProcFs

#: Fields of /proc/PID/status by name.
Status: TypeAlias = dict[str, str]

#: Seconds between the two samples. A second sample is needed because strace stops threads only briefly.
_BETWEEN_S: Final = 0.05
#: Fields of a thread's status. If all of them are equal in two samples, the thread did not run in between.
_UNMOVED: Final = ("State", "voluntary_ctxt_switches", "nonvoluntary_ctxt_switches")
_TICKS: Final = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Tracer:
    """A process that traces the server. ``started`` is a Unix time."""

    pid: int
    start_time: int
    name: str
    command: str
    owner: str
    started: float
    stopped: bool  # the tracer itself is suspended, for example by Ctrl-Z
    started_server: bool  # the server is a child of the tracer, so killing the tracer may end both


@dataclass(frozen=True, slots=True)
class ThreadStates:
    """Counts of a server's threads (all, stopped by a signal, held by a tracer), and its tracers."""

    threads: int
    stopped: int
    traced: int
    tracers: tuple[Tracer, ...]
    hidden: bool  # held by a tracer that is not in our pid namespace

    @property
    def still(self) -> int:
        """Return the number of threads that a signal or a tracer has stopped."""
        return self.stopped + self.traced

    def __str__(self) -> str:
        """Return a summary such as ``of 125 threads, 122 held by gdb (pid 12) of root (ann)``."""
        by = ", ".join(f"{tracer.name} (pid {tracer.pid}) of {tracer.owner}" for tracer in self.tracers)
        counts = {
            "stopped by a signal": self.stopped,
            f"held by {by or 'a debugger outside this pid namespace'}": self.traced,
        }
        parts = [f"{count} {how}" for how, count in counts.items() if count]
        return f"of {self.threads} threads, {', '.join(parts) or 'none is stopped'}"


def thread_states(proc: ProcFs, pid: int) -> ThreadStates:
    """Return the thread states. If a thread is stopped, confirm this with a second sample.

    Raise ProcessLookupError if the process has exited.
    """
    first = now = _sample(proc, pid)
    if any(_stopped(status) for status in first.values()):
        time.sleep(_BETWEEN_S)
        now = _sample(proc, pid)
    states = [status["State"][0] for status in unmoved(first, now)]
    tracers = {int(status["TracerPid"]) for status in now.values()} - {0}
    return ThreadStates(
        threads=len(now),
        stopped=states.count("T"),
        traced=states.count("t"),
        tracers=tuple(_tracers(proc, pid, tracers)),
        hidden="t" in states and not tracers,
    )


def unmoved(before: Mapping[int, Status], now: Mapping[int, Status]) -> list[Status]:
    """Return the status of each thread that was stopped in both samples and has not run in between."""
    return [
        status
        for tid, status in now.items()
        if _stopped(status) and tid in before and all(before[tid][name] == status[name] for name in _UNMOVED)
    ]


def _stopped(status: Status) -> bool:
    return status["State"][0] in "Tt"


def _sample(proc: ProcFs, pid: int) -> dict[int, Status]:
    """Return the status of each thread by its id. Raise ProcessLookupError if the process has exited."""
    found = {}
    with suppress(FileNotFoundError):
        for tid in map(int, os.listdir(proc.path(pid, "task"))):  # noqa: PTH208, there may be thousands
            with suppress(ProcessLookupError):
                found[tid] = proc.status(tid)
    alive = {tid: status for tid, status in found.items() if status["State"][0] not in "ZX"}
    if not alive:
        raise ProcessLookupError(pid)
    return alive


def _tracers(proc: ProcFs, server: int, tids: Iterable[int]) -> Iterable[Tracer]:
    """Yield the tracers, except those that have exited since the sample."""
    for tid in sorted(tids):
        with suppress(ProcessLookupError):
            pid = int(proc.status(tid)["Tgid"])
            stat = proc.stat(pid)
            age = time.clock_gettime(time.CLOCK_BOOTTIME) - stat.start_time / _TICKS
            yield Tracer(
                pid=pid,
                start_time=stat.start_time,
                name=stat.comm,
                command=" ".join(proc.cmdline(pid)),
                owner=process_users.process_owner(proc, pid),
                started=time.time() - age,
                stopped=stat.state in "Tt",
                started_server=int(proc.status(server)["PPid"]) == pid,
            )
