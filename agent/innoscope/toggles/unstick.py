"""The rescue: a server that a signal or a debugger left standing is let go, continued and seen to answer."""

from __future__ import annotations

import signal
import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from innoscope.target.greeting import answers
from innoscope.target.native_errors import gone
from innoscope.target.proc import ProcFs
from innoscope.toggles import standing
from innoscope.toggles.handle import Handle
from innoscope.toggles.model import ChangeFailed, Refused

if TYPE_CHECKING:
    from collections.abc import Callable

    from innoscope.target.model import Target
    from innoscope.toggles.standing import Standing, Tracer

#: Takes what was meant and what came of it. It must not raise: a rescue does not wait for a full disk.
Record: TypeAlias = "Callable[[dict[str, Any]], None]"

#: How long a tracer may take for an orderly end. gdb at its prompt needs 0.02 s for 100 threads; while
#: it reads symbols it does not listen, for seconds.
GENTLE_S: Final = 0.25
_KILLED_S: Final = 2.0
_CONTINUED_S: Final = 2.0
_ANSWER_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class Rescue:
    """What was found and done. ``steps`` are words; ``answered`` is None where it does not listen yet.

    ``seconds`` is from the first step until every thread ran untraced and the server greeted.
    """

    found: Standing
    steps: tuple[str, ...]
    seconds: float
    answered: bool | None


def nothing(_: dict[str, Any]) -> None:
    """Keep no record."""


def require_rights(target: Target) -> None:
    """Raise NoRights unless we may send the server a signal, KernelUnable where there are no pidfds."""
    with _server(target) as server:
        server.send(0)


def find(target: Target) -> Standing:
    """How the server stands. Raises NoSuchProcess."""
    proc = ProcFs()
    try:
        if proc.stat(target.pid).start_time == target.start_time:
            return standing.look(proc, target.pid)
    except ProcessLookupError:
        pass
    raise gone(target.pid)


def require_possible(target: Target, found: Standing, *, end_tracer: bool) -> None:
    """Raise Refused where continuing it takes more than was asked for, or would end it."""
    if found.hidden:
        raise Refused(
            f"process {target.pid} is held by a debugger outside of this pid namespace",
            remedy="innoscope unstick on the host, where the server has another pid",
        )
    for tracer in found.tracers:
        if tracer.started_server:
            raise Refused(
                f"{tracer.name} (pid {tracer.pid}) holds process {target.pid} and has started it: ended, it "
                "would take the server along",
                remedy=f"in {tracer.name}: continue, or detach",
            )
    if found.tracers and not end_tracer:
        tracer = found.tracers[0]
        raise Refused(
            f"process {target.pid} is held by {tracer.name} (pid {tracer.pid}) of {tracer.owner}",
            remedy="let its owner end it (in gdb: detach, then quit), or end it from here:\n"
            f"innoscope unstick --pid {target.pid} --end-tracer",
        )


def rescue(target: Target, found: Standing, *, end_tracer: bool = False, record: Record = nothing) -> Rescue:
    """End the tracers if told to, continue the server, and see that it runs untraced and answers.

    A gdb that is killed while it attaches leaves SIGSTOPs behind, and so may one that is ended in good order:
    hence a SIGCONT in any case, which also takes back those that no thread has taken yet. Raises Refused,
    NoRights, NoSuchProcess, KernelUnable (no pidfds), and ChangeFailed when it still stands or is silent.
    """
    require_possible(target, found, end_tracer=end_tracer)
    entry: dict[str, Any] = {"action": "unstick", "pid": target.pid, "start_time": target.start_time}
    entry |= {"at": time.time(), "end_tracer": end_tracer, "found": asdict(found)}
    record({**entry, "outcome": "intended"})
    steps: list[str] = []
    began = time.monotonic()
    try:
        with _server(target) as server:
            _until_well(target, server, found, end_tracer, steps)
        answered = _require_answer(target)
    except Exception as error:
        record({**entry, "outcome": "failed", "steps": steps, "error": str(error)})
        raise
    done = Rescue(found, tuple(steps), time.monotonic() - began, answered)
    record({**entry, "outcome": "done", "steps": steps, "seconds": done.seconds, "answered": answered})
    return done


def _until_well(
    target: Target, server: Handle, now: Standing, end_tracer: bool, steps: list[str]
) -> None:
    """Return when nothing stands still and nobody traces; a gdb that a script starts anew is ended too."""
    deadline = time.monotonic() + _CONTINUED_S
    while not now.well:
        require_possible(target, now, end_tracer=end_tracer)
        steps += [_end(tracer) for tracer in now.tracers]
        if time.monotonic() > deadline:
            raise ChangeFailed(
                f"process {target.pid} does not run again: {now.still} of {now.threads} threads stand still",
                remedy="something stops it again and again: find and end that (ps -ef), and repeat this",
            )
        server.send(signal.SIGCONT)
        steps.append("SIGCONT to the server")
        now = find(target)


def _require_answer(target: Target) -> bool | None:
    answered = answers(target, _ANSWER_S)
    if answered is False:
        raise ChangeFailed(
            f"process {target.pid} runs again, untraced, and did not answer within {_ANSWER_S:.0f} s",
            remedy=f"where it is: innoscope stacks --pid {target.pid}",
        )
    return answered


def _server(target: Target) -> Handle:
    handle = Handle.open(target.pid, target.start_time, f"the server (pid {target.pid})")
    if handle is None:
        raise gone(target.pid)
    return handle


def _end(tracer: Tracer) -> str:
    """Send SIGTERM, and SIGKILL if that is not enough; return what was done."""
    who = f"{tracer.name} (pid {tracer.pid})"
    handle = Handle.open(tracer.pid, tracer.start_time, who)
    if handle is None:
        return f"{who} has ended by itself"
    with handle:
        if handle.ended():
            return f"{who} has ended by itself"
        handle.send(signal.SIGTERM)
        handle.send(signal.SIGCONT)  # suspended by Ctrl-Z it would not take the first
        if handle.ended(GENTLE_S):
            return f"SIGTERM to {who}"
        handle.send(signal.SIGKILL)
        if handle.ended(_KILLED_S):
            return f"SIGTERM, then SIGKILL to {who}"
    raise ChangeFailed(
        f"{who} does not end, not even by SIGKILL",
        remedy=f"it waits in the kernel: cat /proc/{tracer.pid}/stack",
    )
