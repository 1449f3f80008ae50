"""Count signals, stops, ptrace calls and interrupted system calls of a process with kernel tracepoints.

Unlike sampling, tracepoints miss nothing. To show that the counter works, tests also run it with tools that
stop the process.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bpftrace import Bpftrace

#: Return values of a system call that a signal or a ptrace stop interrupted (include/linux/errno.h). The
#: program gets -EINTR. For the -ERESTART… values, the kernel restarts the call or returns -EINTR.
EINTR = 4
RESTARTS = (512, 513, 514, 516)
_STOPPED_OR_TRACED = 0x4 | 0x8  # prev_state of sched_switch: __TASK_STOPPED, __TASK_TRACED

#: The bpftrace program. Generated signals are counted by thread and later assigned to the process, because
#: the tracepoint has no process id.
_PROGRAM = """
tracepoint:signal:signal_generate {{ @generated[args->pid, args->sig] = count(); }}
tracepoint:signal:signal_deliver /pid == {pid}/ {{ @delivered[args->sig] = count(); }}
tracepoint:raw_syscalls:sys_exit /pid == {pid} && args->ret == -{eintr}/ {{ @eintr[args->id] = count(); }}
tracepoint:raw_syscalls:sys_exit /pid == {pid} && ({restarts})/ {{ @restarted[args->id] = count(); }}
tracepoint:raw_syscalls:sys_exit /pid == {pid}/ {{ @calls = count(); }}
tracepoint:sched:sched_switch /pid == {pid} && (args->prev_state & {stopped})/ {{ @stops[tid] = count(); }}
tracepoint:syscalls:sys_enter_ptrace {{ @ptrace[args->pid, args->request] = count(); }}
"""


@dataclass(frozen=True, slots=True)
class Disturbance:
    """Event counts of the process while the counter was running."""

    calls: int  # system calls that returned; a high number shows that the server was under load
    signals_generated: dict[int, int]  # by signal number, for any thread of the process
    signals_delivered: dict[int, int]
    interrupted: dict[int, int]  # calls that returned -EINTR to the program, by system call number
    restarted: dict[int, int]  # interrupted calls that the kernel restarts, by system call number
    stopped_threads: int  # threads that were in state T or t
    ptrace_calls: int  # calls by any process that target one of the threads

    @property
    def nothing(self) -> bool:
        """Return whether there was no signal, interruption, stop or ptrace call."""
        return not any(
            (
                self.signals_generated,
                self.signals_delivered,
                self.interrupted,
                self.restarted,
                self.stopped_threads,
                self.ptrace_calls,
            )
        )

    def __str__(self) -> str:
        return (
            f"{sum(self.signals_generated.values())} signals generated, "
            f"{sum(self.signals_delivered.values())} delivered, {sum(self.interrupted.values())} EINTR, "
            f"{sum(self.restarted.values())} restarted, {self.stopped_threads} threads stopped, "
            f"{self.ptrace_calls} ptrace calls, of {self.calls:,} system calls"
        )


class Counter:
    """Context manager: count events while the block runs. ``seen`` is set at the end of the block."""

    def __init__(self, pid: int) -> None:
        program = _PROGRAM.format(
            pid=pid,
            eintr=EINTR,
            restarts=" || ".join(f"args->ret == -{code}" for code in RESTARTS),
            stopped=_STOPPED_OR_TRACED,
        )
        self._bpftrace = Bpftrace(program, most_keys=65536)
        self._pid = pid
        self._threads: set[int] = set()
        self.seen: Disturbance | None = None

    def __enter__(self) -> Counter:
        self._bpftrace.__enter__()
        self._threads |= threads(self._pid)
        return self

    def __exit__(self, *error: object) -> None:
        self._threads |= threads(self._pid)
        self._bpftrace.__exit__(*error)
        self.seen = self._read(self._bpftrace.maps)

    def _read(self, maps: dict[str, Any]) -> Disturbance:
        return Disturbance(
            calls=int(maps.get("@calls") or 0),
            signals_generated=self._by_second(maps.get("@generated")),
            signals_delivered=_by_number(maps.get("@delivered")),
            interrupted=_by_number(maps.get("@eintr")),
            restarted=_by_number(maps.get("@restarted")),
            stopped_threads=len(_by_number(maps.get("@stops"))),
            ptrace_calls=sum(self._by_second(maps.get("@ptrace")).values()),
        )

    def _by_second(self, counts: object) -> dict[int, int]:
        """Sum the counts of the process's threads by the second part of the map's key."""
        found: dict[int, int] = {}
        for key, count in (counts if isinstance(counts, dict) else {}).items():
            thread, what = map(int, key.split(","))
            if thread in self._threads:
                found[what] = found.get(what, 0) + int(count)
        return found


def threads(pid: int) -> set[int]:
    """Return the ids of the process's threads."""
    return {int(entry.name) for entry in Path(f"/proc/{pid}/task").iterdir()}


def _by_number(counts: object) -> dict[int, int]:
    """Convert the keys and values of a bpftrace map to integers. bpftrace prints an empty map as 0."""
    return {int(key): int(count) for key, count in counts.items()} if isinstance(counts, dict) else {}
