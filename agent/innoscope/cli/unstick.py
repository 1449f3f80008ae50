"""``innoscope unstick``: a server that a debugger or a signal left standing goes on."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from dataclasses import asdict
from datetime import datetime
from typing import TYPE_CHECKING

import click

from innoscope import emit
from innoscope.cli.common import json_option, target_options

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from innoscope.target.model import Target
    from innoscope.toggles.guard import Event
    from innoscope.toggles.rescuelog import RescueLog
    from innoscope.toggles.standing import Standing, Tracer
    from innoscope.toggles.unstick import Rescue

_NICE = -15
_RISK = """\
Ending a debugger that runs a function in the server (call, print f()) leaves wrong registers behind, and
one that has breakpoints in it may leave them there: either ends the server. One that only looks does not."""
_EPILOG = """\b
Examples:
  sudo innoscope unstick                       a server stopped by a signal, or by a gdb that was killed
  sudo innoscope unstick --pid 4242 --end-tracer      end the debugger that holds it, after asking
  sudo innoscope unstick --pid 4242 --watch 3  while a colleague debugs: end it if the server stands for 3 s

\b
Exit codes: 0 it runs (or did all the time), 3 no or several servers, 4 the server ended, 6 no rights,
14 a debugger holds it and is not to be ended, or has started it, 16 it still stands or does not answer,
130 Ctrl-C. All: docs/cli.md.
"""


@click.command("unstick", epilog=_EPILOG)
@target_options
@click.option(
    "--end-tracer", is_flag=True, help="End the debugger that holds it: SIGTERM, after 0.25 s SIGKILL."
)
@click.option("-y", "--yes", is_flag=True, help="Do not ask before a debugger is ended.")
@click.option(
    "--watch", "patience", type=click.FloatRange(1), metavar="SECONDS",
    help="Guard it until Ctrl-C: whoever lets it stand for longer is ended, without asking.",
)  # fmt: skip
@json_option
def command(
    pid: int | None, socket: str | None, port: int | None, end_tracer: bool, yes: bool,
    patience: float | None, as_json: bool,
) -> None:  # fmt: skip
    """Make a server that stands still (state T or t) go on, after saying who holds it; see that it answers.

    It works without SQL and without symbols, and for a server that stands nothing else is needed. A debugger
    that still holds the server is ended only when you say so.
    """
    from innoscope.target import people
    from innoscope.target.discover import find_one
    from innoscope.target.proc import ProcFs
    from innoscope.toggles import unstick
    from innoscope.toggles.rescuelog import RescueLog

    _be_quick()
    target = find_one(pid, socket, port)
    unstick.require_rights(target)
    log = RescueLog(target, people.ourselves(ProcFs()))
    if patience is not None:
        _watch(target, patience, as_json, log)
        return
    found = unstick.find(target)
    if not as_json:
        emit.lines(_found_lines(target, found))
    if not found.still:
        if as_json:
            emit.document(_document(target, found), indent=2)
        return
    unstick.require_possible(target, found, end_tracer=end_tracer)
    if found.tracers and not yes:
        _confirm(target, found)
    try:
        done = unstick.rescue(target, found, end_tracer=end_tracer, record=log)
    finally:
        _complain(log)
    if as_json:
        emit.document(_document(target, found, done, log), indent=2)
    else:
        emit.line(_done(done))


def _be_quick() -> None:
    """A debugger that reads symbols takes every CPU there is; the server waits for us meanwhile."""
    with contextlib.suppress(PermissionError):
        os.setpriority(os.PRIO_PROCESS, 0, _NICE)


def _confirm(target: Target, found: Standing) -> None:
    """Say what can go wrong, and ask; where nobody can be asked, refuse."""
    from innoscope.toggles.model import Refused

    emit.block(_RISK, err=True)
    if found.still < found.threads:
        running = f"{found.threads - found.still} of its {found.threads} threads run"
        emit.line(f"Now {running}: it attaches just now, or a function is being run.", err=True)
    if not sys.stdin.isatty():
        raise Refused(
            "there is no terminal to ask whether the debugger is to be ended",
            remedy=f"innoscope unstick --pid {target.pid} --end-tracer --yes",
        )
    names = ", ".join(f"{tracer.name} (pid {tracer.pid})" for tracer in found.tracers)
    if not emit.confirmed(f"End {names} of {found.tracers[0].owner}?"):
        raise Refused("not confirmed: nothing was done", remedy="in gdb: detach, then quit")


def _complain(log: RescueLog) -> None:
    """Say why the journal does not have the rescue, if so."""
    if log.problem is not None:
        what, remedy = log.problem
        emit.line(f"The journal does not have this rescue: {what}", err=True)
        if remedy:
            emit.lines((f"  {line}" for line in remedy.split("\n")), err=True)


def _watch(target: Target, patience: float, as_json: bool, log: RescueLog) -> None:
    """Tell of each rescue, and on a terminal that all is well in between."""
    from innoscope.toggles.guard import Watched, watch

    began = time.monotonic()
    if not as_json:
        emit.line(f"{_title(target)}: guarded; standing for more than {patience:g} s, it is continued")
    for event in watch(target, patience, record=log):
        if not isinstance(event, Watched):
            _tell(target, event, as_json, log)
            _complain(log)
        elif not as_json:
            state = f"stands for {event.still_s:.1f} s" if event.still_s else "runs"
            emit.progress(f"{state}; watched for {time.monotonic() - began:,.0f} s; Ctrl-C ends this ")


def _tell(target: Target, event: Event, as_json: bool, log: RescueLog) -> None:
    from innoscope.errors import InnoscopeError
    from innoscope.toggles.unstick import Rescue

    emit.wipe()
    if isinstance(event, InnoscopeError):
        failed = {"at": time.time(), "error": event.what, "remedy": event.remedy}
        if as_json:
            emit.document(failed)
        else:
            emit.line(f"{_clock(time.time())} {event.what}")
            emit.lines(f"  {line}" for line in (event.remedy or "").split("\n"))
    elif isinstance(event, Rescue):
        if as_json:
            emit.document({"at": time.time(), **_document(target, event.found, event, log)})
        else:
            first, *rest = _found_lines(target, event.found)
            emit.lines((f"{_clock(time.time())} {first}", *rest, _done(event)))


def _found_lines(target: Target, found: Standing) -> Iterator[str]:
    """Who stopped it or holds it."""
    if not found.still:
        if not found.tracers:
            yield f"{_title(target)}: nothing to do, none of its {found.threads} threads stands still"
            return
        yield f"{_title(target)}: nothing to do; it is traced, and runs"
    else:
        yield f"{_title(target)}: {_how(found)}"
    for tracer in found.tracers:
        yield f"  {_tracer(tracer)}"


def _how(found: Standing) -> str:
    parts = []
    if found.stopped:
        parts.append(f"{found.stopped} stopped by a signal (T; the kernel does not keep who sent it)")
    if found.traced:
        parts.append(f"{found.traced} held by a debugger (t)")
    return f"of its {found.threads} threads {' and '.join(parts)}"


def _tracer(tracer: Tracer) -> str:
    """``gdb, pid 12, of root (alice), runs since 14:02:11 (3 min), suspended: gdb -p 4242``."""
    minutes = (time.time() - tracer.started) / 60
    since = f"runs since {_clock(tracer.started)} ({minutes:.0f} min)"
    suspended = ", itself suspended (Ctrl-Z)" if tracer.stopped else ""
    return f"{tracer.name}, pid {tracer.pid}, of {tracer.owner}, {since}{suspended}: {tracer.command}"


def _done(done: Rescue) -> str:
    steps = ", ".join(done.steps)
    answer = (
        "and answers" if done.answered else "and does not listen yet, as a server that starts or recovers"
    )
    return f"{steps}: after {done.seconds:.2f} s it runs, untraced, {answer}"


def _document(
    target: Target, found: Standing, done: Rescue | None = None, log: RescueLog | None = None
) -> Mapping[str, object]:
    """``rescue`` is null when nothing had to be done; its ``journal`` is why the journal does not have it."""
    rescue = None
    if done is not None:
        problem = log.problem[0] if log is not None and log.problem else None
        rescue = {"steps": done.steps, "seconds": done.seconds, "answered": done.answered, "journal": problem}
    return {"target": target.document(), "found": asdict(found), "rescue": rescue}


def _title(target: Target) -> str:
    number = ".".join(map(str, target.version)) or target.version_text
    return f"{target.flavour} {number}, pid {target.pid}"


def _clock(at: float) -> str:
    return datetime.fromtimestamp(at).astimezone().strftime("%Y-%m-%d %H:%M:%S")
