"""What the kernel itself saw a tool do to one process: signals, stops, ptrace calls, broken-off system calls.

Counted with tracepoints by bpftrace, so nothing is missed between two samples. The counter is made for one
process and one stretch of time; that it is not blind is shown by counting tools that do stop the process.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from servers import Keeper, ensure_packages

if TYPE_CHECKING:
    from collections.abc import Iterable

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
BEGIN {{ printf("ready\\n"); }}
"""

#: tracefs is mounted for bpftrace alone: the machine is as before when it ends.
_MOUNTED = 'mount -t tracefs tracefs /sys/kernel/tracing && exec bpftrace -B line -f json -e "$1"'
_END_S = 60


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
        ensure_packages(["bpftrace"])
        self._pid = pid
        self._threads: set[int] = set()
        self.seen: Disturbance | None = None

    def __enter__(self) -> Counter:
        program = _PROGRAM.format(
            pid=self._pid,
            eintr=EINTR,
            restarts=" || ".join(f"args->ret == -{code}" for code in RESTARTS),
            stopped=_STOPPED_OR_TRACED,
        )
        self._keeper = Keeper()
        self._process = subprocess.Popen(
            ["unshare", "--mount", "sh", "-c", _MOUNTED, "sh", program],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "BPFTRACE_MAP_KEYS_MAX": "65536"},
        )
        self._keeper.watch(self._process.pid)
        try:
            self._wait_until_attached()
        except BaseException:
            self._process.kill()
            self._process.communicate()
            self._keeper.close()
            raise
        self._threads |= threads(self._pid)
        return self

    def __exit__(self, *_: object) -> None:
        self._threads |= threads(self._pid)
        try:
            self._process.send_signal(signal.SIGINT)
            output, _errors = self._process.communicate(timeout=_END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()
            raise
        finally:
            self._keeper.close()
        self.seen = self._read(output.splitlines())

    def _wait_until_attached(self) -> None:
        """The line of BEGIN comes through the buffer that is read only once all probes are attached."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("{") and json.loads(line).get("data") == "ready\n":
                return
        assert self._process.stderr is not None
        raise RuntimeError(f"bpftrace did not start: {self._process.stderr.read()}")

    def _read(self, lines: Iterable[str]) -> Disturbance:
        maps: dict[str, Any] = {}
        for line in lines:
            if line.startswith("{") and (message := json.loads(line))["type"] == "map":
                maps |= message["data"]
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
