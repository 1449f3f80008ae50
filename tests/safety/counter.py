"""What the kernel itself saw a tool do to one process: signals, stops, ptrace calls, broken-off system calls.

Counted with tracepoints by bpftrace, so nothing is missed between two samples. The counter is made for one
process and one stretch of time; that it is not blind is shown by counting tools that do stop the process.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bpftrace import Bpftrace

#: Return values of a system call that a signal or a ptrace stop broke off (include/linux/errno.h): -EINTR
#: reaches the program; the -ERESTART… ones make the kernel start the call again (or turn into -EINTR).
EINTR = 4
RESTARTS = (512, 513, 514, 516)
_STOPPED_OR_TRACED = 0x4 | 0x8  # prev_state of sched_switch: __TASK_STOPPED, __TASK_TRACED

#: The signals are kept by thread and sorted out afterwards: their tracepoint does not say which process.
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
    """What happened to the process between entering and leaving the counter."""

    calls: int  # system calls that returned at all, to show that the server was at work
    signals_generated: dict[int, int]  # signal number → how many, for any of its threads
    signals_delivered: dict[int, int]
    interrupted: dict[int, int]  # system call number → how many returned -EINTR
    restarted: dict[int, int]  # … how many were broken off for a restart
    stopped_threads: int  # threads that were in state T or t
    ptrace_calls: int  # by anybody, on one of its threads

    @property
    def nothing(self) -> bool:
        """Whether the process was left entirely alone."""
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
    """A context manager; ``seen`` is there after its end."""

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

    def __exit__(self, *told: object) -> None:
        self._threads |= threads(self._pid)
        self._bpftrace.__exit__(*told)
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
        """Counts by (thread, what) → counts by what, of our process's threads only."""
        found: dict[int, int] = {}
        for key, count in (counts if isinstance(counts, dict) else {}).items():
            thread, what = map(int, key.split(","))
            if thread in self._threads:
                found[what] = found.get(what, 0) + int(count)
        return found


def threads(pid: int) -> set[int]:
    """The ids of its threads now."""
    return {int(entry.name) for entry in Path(f"/proc/{pid}/task").iterdir()}


def _by_number(counts: object) -> dict[int, int]:
    """bpftrace prints 0, and no table, for a map that nothing was put in."""
    return {int(key): int(count) for key, count in counts.items()} if isinstance(counts, dict) else {}
