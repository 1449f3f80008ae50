"""A function of a running server called by gdb: to release memory, for which no server has SQL.

gdb holds the server only to set one thread off (see in_gdb.py); the call itself runs with all threads running
and nobody attached. What is left is the time that gdb takes to attach, and a watchdog bounds that.
"""

from __future__ import annotations

import json
import platform
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from innoscope.errors import KernelUnable, NoRights
from innoscope.stacks.engine import Engine
from innoscope.target.discover import still_same
from innoscope.target.native_errors import gone, no_rights
from innoscope.target.proc import ProcFs
from innoscope.toggles import allocator, gdbfile, in_gdb, watchdog, watchdog_main
from innoscope.toggles.model import ChangeFailed, NotOnThisServer, Refused, Step

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from types import TracebackType

    from innoscope.stacks.model import Thread
    from innoscope.target.model import Target
    from innoscope.toggles.allocator import Call
    from innoscope.toggles.model import Raw, Way

_SCRIPT: Final = Path(in_gdb.__file__)
#: Seconds for which gdb may hold the server; it takes a tenth of that.
_HELD_S: Final = 1.5
#: Measured on a busy host: gdb's own work, and what each thread adds to it, in seconds.
_STALL_S, _STALL_PER_THREAD_S = 0.25, 0.000_3
#: Looks for a moment in which no thread is inside the allocator, and seconds between them.
_LOOKS, _BETWEEN_S = 5, 0.1
_AGAIN_S: Final = 0.005
#: poll's number on x86-64, and the function of the kernel that it sleeps in.
_POLL, _POLL_SLEEPS_IN = 7, "poll_schedule_timeout"
_ALLOCATOR: Final = re.compile(
    r"(?:__libc_|_int_|tc_|je_|__GI_+)?(?:malloc|free|calloc|realloc|memalign|valloc|pvalloc|cfree)\b"
    r"|(?:posix_memalign|aligned_alloc|malloc_\w+|sysmalloc|systrim|arena_get\w*|tcache_\w+|mallctl)\b"
    r"|operator (?:new|delete)|tcmalloc::|jemalloc|je_|_rjem_|MallocExtension"
)
_MACHINE: Final = "x86_64"


class GdbWriter:
    """Calls by gdb in one server; satisfies ``model.Writer``.

    ``deadline_s`` is the time that gdb may take in all, and that the call may take after it. gdb never holds
    the server for longer than 1.5 s, nor for longer than the deadline.
    """

    kind = "gdb"

    def __init__(self, target: Target, deadline_s: float = 10.0, *, gdb: str = "gdb") -> None:
        self._target = target
        self._gdb = gdb
        self.deadline_s = deadline_s
        #: Seconds for which the server may be stopped at most.
        self.held_s = min(_HELD_S, deadline_s)
        #: What gdb did at the last write: how long it held the server, whether it had to be killed.
        self.last: watchdog.Outcome | None = None

    def __enter__(self) -> GdbWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Nothing is kept open."""

    @property
    def stall_s(self) -> float:
        """Seconds for which a write will stop the server, as expected from its number of threads."""
        threads = len(watchdog_main.threads(self._target.pid))
        return min(self.held_s, _STALL_S + threads * _STALL_PER_THREAD_S)

    def prepare(self, way: Way, new: Sequence[Raw | None]) -> tuple[Step, ...]:
        """One step: the call for the allocator that this server runs on. Nothing is stopped.

        Raises NotOnThisServer or Refused when it cannot be made, NoSuchProcess, NoRights.
        """
        found = allocator.detect(self._target)
        expression = way.calls.get(found.name)
        if expression is None:
            raise NotOnThisServer(
                f"process {self._target.pid} runs on {found.name}, for which there is no call",
                remedy="release memory by a restart of the server",
            )
        call = allocator.resolve(self._target, found, expression)
        self._check()
        return (Step(expression, None, None, address=call.function, origin=call.origin),)

    def read(self, step: Step) -> Raw:
        """What a call changes: the server's resident memory, in bytes."""
        try:
            return int(ProcFs().status(self._target.pid)["VmRSS"].split()[0]) * 1024
        except (ProcessLookupError, KeyError) as error:
            raise gone(self._target.pid) from error

    def write(self, step: Step) -> None:
        """Have the call made and wait for its end.

        Raises Refused when it was not made, ChangeFailed when it was or may have been and did not end well.
        """
        call = allocator.resolve(self._target, allocator.detect(self._target), step.setting)
        if call.function != step.address:
            raise Refused(f"{step.setting} is not where it was when this was planned", remedy="plan it again")
        parked = self._check()
        self.last = outcome = watchdog.run(
            self._target, self._command(), self._environment(call, parked[0]),
            held_s=self.held_s, deadline_s=self.deadline_s,
        )  # fmt: skip
        if outcome.called is False:
            raise _not_made(step, outcome)
        self._await(step, parked)
        if outcome.called is None:
            raise ChangeFailed(
                f"gdb ended at the very moment of {step.setting}, which may have been called; the server "
                "runs on, untraced",
                remedy="do it again: another call does no harm",
            )

    def _command(self) -> list[str]:
        """Names are read before it attaches, and those of libraries not at all: we have the addresses."""
        return [
            self._gdb, *gdbfile.OPTIONS, "-readnever", "-iex", "set auto-solib-add off",
            "-iex", "set confirm off", "-iex", "set pagination off",
            "-iex", f"file /proc/{self._target.pid}/exe", "-x", str(_SCRIPT),
        ]  # fmt: skip

    def _environment(self, call: Call, waits_in: int) -> dict[str, str]:
        order = {
            "pid": self._target.pid, "tid": self._target.pid, "start_time": self._target.start_time,
            "function": call.function,
            "arguments": list(call.arguments), "restorer": call.restorer,
            "waits_in": waits_in,
        }  # fmt: skip
        return {**gdbfile.ENVIRONMENT, "INNOSCOPE_CALL": json.dumps(order)}

    def _check(self) -> tuple[int, str, str]:
        """Raise Refused unless a call can be made now; where the first thread is parked."""
        pid = self._target.pid
        if not still_same(self._target):
            raise gone(pid)
        if platform.machine() != _MACHINE:
            raise NotOnThisServer(f"calls by gdb are not known on {platform.machine()}", remedy=None)
        if not gdbfile.available(self._gdb):
            raise Refused("gdb is not installed", remedy="apt-get install gdb, or dnf install gdb")
        seen = watchdog_main.threads(pid)
        if tracers := {who for _, who in seen if who}:
            raise Refused(
                f"process {pid} is traced already, by {', '.join(map(str, sorted(tracers)))}",
                remedy="end that debugger, or innoscope unstick",
            )
        if any(state in "Tt" for state, _ in seen):
            raise Refused(f"process {pid} is stopped", remedy=f"innoscope unstick --pid {pid}")
        if "shstk" in ProcFs().status(pid).get("x86_Thread_features", ""):
            raise Refused(
                f"process {pid} has a shadow stack, which forbids calls from outside",
                remedy="release memory by a restart of the server",
            )
        self._look()
        return self._parked()

    def _look(self) -> None:
        """Raise Refused when at every one of several looks some thread is inside the allocator."""
        try:
            engine = Engine(self._target)
        except (KernelUnable, NoRights) as error:  # whose remedy offers to stop threads
            raise Refused(
                f"cannot see whether a thread is inside the allocator: {error.what}",
                remedy="innoscope doctor shows what is missing",
            ) from error
        for number in range(_LOOKS):
            if number:
                time.sleep(_BETWEEN_S)
            inside = busy(engine.look().threads)
            if not inside:
                return
        raise Refused(
            f"threads of process {self._target.pid} are inside the allocator: "
            f"{', '.join(map(str, inside[:5]))}",
            remedy="try again when the server has less to do",
        )

    def _parked(self) -> tuple[int, str, str]:
        """(system call, stack pointer, program counter) of the first thread, which waits for clients."""
        where = self._where()
        if where is None:
            raise Refused(
                f"the first thread of process {self._target.pid} is not waiting for new clients",
                remedy="try again; while the server starts or shuts down it cannot be done",
            )
        return where

    def _where(self) -> tuple[int, str, str] | None:
        pid = self._target.pid
        try:
            fields = Path(f"/proc/{pid}/task/{pid}/syscall").read_text().split()
            sleeps_in = Path(f"/proc/{pid}/task/{pid}/wchan").read_text()
        except PermissionError as error:
            raise no_rights(pid, error.strerror or "") from error
        except OSError as error:
            raise gone(pid) from error
        if len(fields) != 9:
            return None  # it runs
        number = int(fields[0])
        if number == in_gdb.RESTARTED and sleeps_in.startswith(_POLL_SLEEPS_IN):
            number = _POLL
        return (number, fields[7], fields[8]) if number in in_gdb.PARKED else None

    def _await(self, step: Step, parked: tuple[int, str, str]) -> None:
        """Until the thread is back where it was."""
        deadline = time.monotonic() + self.deadline_s
        while self._where() != parked:
            if not still_same(self._target):
                raise gone(self._target.pid)
            if time.monotonic() > deadline:
                raise ChangeFailed(
                    f"{step.setting} has not returned after {self.deadline_s:g} s; the server runs, untraced",
                    remedy="innoscope stacks shows where its first thread is; new clients wait for it",
                )
            time.sleep(_AGAIN_S)


def busy(threads: Iterable[Thread]) -> list[int]:
    """The ids of threads that are inside the allocator."""
    return [
        thread.tid
        for thread in threads
        if any(frame.function and _ALLOCATOR.match(frame.function) for frame in thread.frames)
    ]


def _not_made(step: Step, outcome: watchdog.Outcome) -> Refused:
    why = outcome.refused or outcome.killed
    if why is None:
        why = f"gdb ended with {outcome.status}: {outcome.said.strip()[-300:]}"
    return Refused(
        f"{step.setting} was not called: {why}",
        remedy="the server runs on, untraced, and nothing was changed: try again",
    )
