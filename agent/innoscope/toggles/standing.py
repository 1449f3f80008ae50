"""Which threads of a server stand still, and who holds them: from /proc, which answers when it does not."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from innoscope.target import people

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from innoscope.target.proc import ProcFs

STOPPED: Final = "T"  # by a signal: SIGSTOP, SIGTSTP
TRACED: Final = "t"  # by a tracer, or by a signal while one traces

#: Seconds between the two looks that tell a thread that stands still from one that is held for a moment.
_BETWEEN_S: Final = 0.05
_TICKS: Final = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Thread:
    """One thread now. ``tracer`` is a thread id, 0 for none; ``switches`` counts how often it left a CPU."""

    tid: int
    state: str
    tracer: int
    switches: int

    @property
    def still(self) -> bool:
        """Whether it is stopped or held right now."""
        return self.state in (STOPPED, TRACED)


@dataclass(frozen=True, slots=True)
class Tracer:
    """A process that traces the server. ``started`` is Unix time; since when it traces is not to be had."""

    pid: int
    start_time: int
    name: str
    command: str
    owner: str
    started: float
    stopped: bool  # it is suspended itself, as by Ctrl-Z
    started_server: bool  # the server runs under it: both would end together


@dataclass(frozen=True, slots=True)
class Standing:
    """How a server stands: of all ``threads``, those stopped by a signal and those held by a tracer."""

    threads: int
    stopped: int
    traced: int
    tracers: tuple[Tracer, ...]  # of all its threads, also of those that run
    hidden: bool  # held by a tracer that is not in our pid namespace

    @property
    def still(self) -> int:
        """How many threads stand still."""
        return self.stopped + self.traced

    @property
    def well(self) -> bool:
        """Nothing stands still and nobody traces."""
        return not self.still and not self.tracers


def look(proc: ProcFs, pid: int) -> Standing:
    """How the server stands: two looks, which take 50 ms. Raises ProcessLookupError.

    A thread that strace holds for a moment at each system call leaves the CPU in between, and does not count.
    """
    first = threads(proc, pid)
    if not any(thread.still for thread in first.values()):
        return _standing(proc, pid, first, ())
    time.sleep(_BETWEEN_S)
    second = threads(proc, pid)
    return _standing(proc, pid, second, standing_still(first, second))


def threads(proc: ProcFs, pid: int, tids: Iterable[int] | None = None) -> dict[int, Thread]:
    """The threads by id, those asked for or all. /proc/PID/task/TID/status. Raises ProcessLookupError."""
    found = {}
    try:
        listed = os.listdir(proc.path(pid, "task")) if tids is None else map(str, tids)  # noqa: PTH208
    except (FileNotFoundError, ProcessLookupError) as error:
        raise ProcessLookupError(pid) from error
    for name in listed:
        thread = _thread(proc.path(pid, "task", name, "status"), int(name))
        if thread is not None:
            found[thread.tid] = thread
    if not found:
        raise ProcessLookupError(pid)
    return found


def standing_still(before: Mapping[int, Thread], now: Mapping[int, Thread]) -> tuple[Thread, ...]:
    """The threads that stood still all the time from one look to the other."""
    return tuple(
        thread
        for thread in now.values()
        if thread.still
        and (earlier := before.get(thread.tid)) is not None
        and earlier.still
        and earlier.switches == thread.switches
    )


def _thread(path: str, tid: int) -> Thread | None:
    try:
        text = Path(path).read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = dict(line.split(b":\t", 1) for line in text.splitlines() if b":\t" in line)
    state = fields[b"State"][:1].decode()
    if state in "ZX":
        return None
    switches = int(fields[b"voluntary_ctxt_switches"]) + int(fields[b"nonvoluntary_ctxt_switches"])
    return Thread(tid, state, int(fields[b"TracerPid"]), switches)


def _standing(proc: ProcFs, pid: int, all_threads: Mapping[int, Thread], still: Iterable[Thread]) -> Standing:
    still = tuple(still)
    traced = [thread for thread in still if thread.state == TRACED]
    ids = {thread.tracer for thread in all_threads.values()} - {0}
    tracers = {tracer.pid: tracer for tid in sorted(ids) if (tracer := _tracer(proc, pid, tid))}
    hidden = any(thread.tracer == 0 for thread in traced)
    return Standing(len(all_threads), len(still) - len(traced), len(traced), tuple(tracers.values()), hidden)


def _tracer(proc: ProcFs, server: int, tid: int) -> Tracer | None:
    """The process of a tracing thread; None when it has just ended."""
    try:
        status = proc.status(tid)
        pid = int(status["Tgid"])
        stat = proc.stat(pid)
        return Tracer(
            pid=pid,
            start_time=stat.start_time,
            name=stat.comm,
            command=" ".join(proc.cmdline(pid)),
            owner=people.owner_of(proc, pid),
            started=_boot_time(proc) + stat.start_time / _TICKS,
            stopped=stat.state in (STOPPED, TRACED),
            started_server=int(proc.status(server)["PPid"]) == pid,
        )
    except (ProcessLookupError, KeyError):
        return None


def _boot_time(proc: ProcFs) -> float:
    """Unix time at which clock ticks began (btime in /proc/stat)."""
    lines = (proc.root / "stat").read_text().splitlines()
    return next((float(line.split()[1]) for line in lines if line.startswith("btime ")), 0.0)
