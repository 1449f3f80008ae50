"""Resume a server that a debugger or a signal left stopped, and verify that it responds."""

from __future__ import annotations

import os
import signal
import socket
import time
from dataclasses import dataclass
from select import select
from typing import TYPE_CHECKING, Final

from innoscope.common.errors import InnoscopeError, KernelUnable, NoRights, SqlFailed
from innoscope.target import process_users
from innoscope.target.native_errors import gone
from innoscope.target.proc import ProcFs
from innoscope.target.unix_socket import socket_from_here
from innoscope.toggles import stopped_threads
from innoscope.toggles.journal import Journal
from innoscope.toggles.journal_format import RESCUE, JournalEntry, ServerId, fresh_id, printable
from innoscope.toggles.model import ChangeFailed, ChangeRefused, ChangeStep
from innoscope.toggles.paths import boot_id

if TYPE_CHECKING:
    from collections.abc import Iterator

    from innoscope.target.model import Target
    from innoscope.toggles.stopped_threads import ThreadStates, Tracer

#: Seconds to wait after SIGTERM. gdb exits after 0.02 s, unless it is reading symbols, which takes seconds.
_TERM_S: Final = 0.25
#: Seconds to wait after SIGKILL.
_KILL_S: Final = 2.0
_RESUME_S, _ANSWER_S = 2.0, 5.0
_POLL_S: Final = 0.1


@dataclass(frozen=True, slots=True)
class Rescue:
    """The result of resuming a server: the actions and their duration in seconds.

    ``answered`` is None if the server does not listen on a known Unix socket. ``journal`` is the reason why
    the journal entry could not be written; None if it was written.
    """

    steps: tuple[str, ...]
    seconds: float
    answered: bool | None
    journal: str | None


def find(target: Target) -> ThreadStates:
    """Return the states of the server's threads. Raise NoSuchProcess if the server has exited."""
    try:
        if ProcFs().stat(target.pid).start_time == target.start_time:
            return stopped_threads.thread_states(ProcFs(), target.pid)
    except ProcessLookupError:
        pass
    raise gone(target.pid)


def stopped_for(target: Target, seconds: float) -> Iterator[ThreadStates]:
    """Yield the thread states each time the server has been stopped for longer than ``seconds``.

    Checking takes at most 5 % of a CPU. Raise NoSuchProcess if the server exits.
    """
    since = None
    while True:
        now, spent = time.monotonic(), time.thread_time()
        found = find(target)
        if not found.still:
            since = None
        elif since is None:
            since = now
        elif now - since > seconds:
            yield found
            since = None
        time.sleep(_POLL_S + 20 * (time.thread_time() - spent))


def check(target: Target, found: ThreadStates, *, end_tracer: bool) -> None:
    """Raise ChangeRefused if a tracer must not be killed, or if killing it would also end the server."""
    for tracer in found.tracers:
        held = f"process {target.pid} is held by {tracer.name} (pid {tracer.pid}) of {tracer.owner}"
        remedy = f"in {tracer.name}: detach, then quit"
        if tracer.started_server:
            raise ChangeRefused(f"{held}, which started it: both would exit", remedy=remedy)
        if not end_tracer:
            command = f"innoscope unstick --pid {target.pid} --end-tracer"
            raise ChangeRefused(held, remedy=f"{remedy}; or kill it:\n{command}")


def rescue(target: Target, found: ThreadStates, *, end_tracer: bool) -> Rescue:
    """Kill the tracers if allowed, resume the server, verify that it responds, and add a journal entry.

    Raise the errors of ``find``, ``check`` and ``send``, and ChangeFailed if the server stays stopped or
    unresponsive.
    """
    at, began, steps = time.time(), time.monotonic(), list[str]()
    try:
        answered = _resume(target, found, end_tracer, steps)
    except InnoscopeError as error:
        journal_rescue(target, at, found, "failed", f"{', '.join(steps) or 'nothing sent'}: {error.what}")
        raise
    seconds = time.monotonic() - began
    problem = journal_rescue(
        target, at, found, "done", f"{', '.join(steps)}: recovered after {seconds:.2f} s"
    )
    return Rescue(tuple(steps), seconds, answered, problem)


def _resume(target: Target, found: ThreadStates, end_tracer: bool, steps: list[str]) -> bool | None:
    """Resume the server, add the actions to ``steps``, and return whether the server responds.

    SIGCONT also cancels pending SIGSTOPs that a killed gdb has left.
    """
    deadline = time.monotonic() + _RESUME_S
    while found.still or found.tracers:
        check(target, found, end_tracer=end_tracer)
        steps += [_end(tracer) for tracer in found.tracers]
        if time.monotonic() > deadline:
            raise ChangeFailed(
                f"process {target.pid} keeps being stopped: {found}",
                remedy="find and end what stops it (ps -ef), then run this again",
            )
        send(target.pid, target.start_time, signal.SIGCONT)
        steps.append("SIGCONT to the server")
        found = find(target)
    answered = answers(target, _ANSWER_S)
    if answered is False:
        raise ChangeFailed(
            f"process {target.pid} runs again and is not traced, but did not answer within {_ANSWER_S:.0f} s",
            remedy=f"innoscope stacks --pid {target.pid}",
        )
    return answered


def _end(tracer: Tracer) -> str:
    """Send SIGTERM to the tracer, then SIGKILL if it does not exit. Return a description of the actions."""
    who = f"{tracer.name} (pid {tracer.pid})"
    if send(tracer.pid, tracer.start_time, signal.SIGTERM):
        return f"{who} had already exited"
    if send(tracer.pid, tracer.start_time, signal.SIGCONT, _TERM_S):  # a suspended tracer must be resumed
        return f"SIGTERM to {who}"
    send(tracer.pid, tracer.start_time, signal.SIGKILL, _KILL_S)
    return f"SIGTERM, then SIGKILL to {who}"


def send(pid: int, start_time: int, number: int, wait_s: float = 0.0) -> bool:
    """Send a signal to the process if its start time matches.

    Return whether the process exits within ``wait_s`` seconds or has already exited. Raise NoRights
    without permission to signal it, or KernelUnable if the kernel does not support pidfds (Linux before 5.3).
    """
    try:
        pidfd = os.pidfd_open(pid)
        try:
            if ProcFs().stat(pid).start_time != start_time:
                return True
            signal.pidfd_send_signal(pidfd, number)
            return bool(select([pidfd], [], [], wait_s)[0])
        finally:
            os.close(pidfd)
    except ProcessLookupError:
        return True
    except PermissionError as error:
        raise NoRights(f"cannot signal process {pid}: {error.strerror}", remedy="sudo innoscope …") from error
    except OSError as error:
        raise KernelUnable(
            f"cannot open a pidfd of process {pid}: {error.strerror}", remedy=f"kill -CONT {pid}"
        ) from error


def answers(target: Target, timeout_s: float) -> bool | None:
    """Return whether the server sends its greeting in time; None if it listens on no known Unix socket."""
    if target.socket is None:
        return None
    try:
        with (
            socket_from_here(ProcFs(), target, target.socket) as path,
            socket.socket(socket.AF_UNIX) as connection,
        ):
            connection.settimeout(timeout_s)
            connection.connect(path)
            first = connection.makefile("rb").read(5)
    except (SqlFailed, ConnectionRefusedError, FileNotFoundError):
        return None
    except OSError:
        return False
    return first[4:] in (b"\n", b"\xff")  # protocol version 10, or an error such as "Too many connections"


def journal_rescue(target: Target, at: float, found: ThreadStates, outcome: str, reason: str) -> str | None:
    """Add an attempt to resume a server to the journal. Return the reason if this fails, else None."""
    book = Journal()
    try:
        entry = JournalEntry(
            id=fresh_id(book.entries()), at=at, who=printable(process_users.current_user(ProcFs())), why=None,
            toggle=RESCUE, value="", backend="signal", server=ServerId.of(target, boot_id()),
            steps=(ChangeStep(printable(str(found)), None, None),),
        )  # fmt: skip
        book.intend(entry)
        book.conclude(entry.id, outcome, reason)
    except InnoscopeError as error:
        return error.what.removeprefix("nothing was changed: ")
    return None
