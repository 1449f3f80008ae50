"""``innoscope unstick``: resume a server that a debugger or a signal left stopped."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from innoscope.cli.common import json_option, require_yes, target_options
from innoscope.cli.parameters import Duration
from innoscope.cli.toggle_text import clock, title
from innoscope.common import console
from innoscope.target.discover import find_one
from innoscope.toggles import unstick
from innoscope.toggles.model import ChangeFailed

if TYPE_CHECKING:
    from innoscope.target.model import Target
    from innoscope.toggles.stopped_threads import ThreadStates
    from innoscope.toggles.unstick import Rescue

_NICE = -15  # raise our priority: a debugger that reads symbols may use all CPUs
_RISK = """\
Killing a debugger that runs a function in the server (call, print f()) or has breakpoints in it may kill the
server. Killing a debugger that only reads is safe."""
_EPILOG = """\b
Examples:
  sudo innoscope unstick                          a server stopped by a signal, or by a gdb that was killed
  sudo innoscope unstick --pid 4242 --end-tracer  kill the debugger that holds the server, after asking
  sudo innoscope unstick --pid 4242 --watch 3     kill any debugger that stops the server for over 3 s

Exit codes: docs/cli.md.
"""


@click.command("unstick", epilog=_EPILOG)
@target_options
@click.option("--end-tracer", is_flag=True, help="Kill the debugger: SIGTERM, then SIGKILL after 0.25 s.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask before killing a debugger.")
@click.option(
    "--watch",
    "patience",
    type=Duration(1),
    help="Until Ctrl-C, kill any debugger that stops the server for longer than TIME, without asking.",
)
@json_option
def command(
    pid: int | None, socket: str | None, port: int | None, end_tracer: bool, yes: bool,
    patience: float | None, as_json: bool,
) -> None:  # fmt: skip
    """Resume a server that a debugger or signal left stopped, and verify that it responds.

    The processes that trace the server are listed. Neither SQL nor symbols are needed. A debugger is killed
    only with --end-tracer or --watch.
    """
    with suppress(PermissionError):
        os.setpriority(os.PRIO_PROCESS, 0, _NICE)
    target = find_one(pid, socket, port)
    unstick.send(target.pid, target.start_time, 0)  # signal 0 only checks our permission
    if patience is not None:
        _watch(target, patience, as_json)
        return
    found, done = unstick.find(target), None
    _show_found(target, found, as_json)
    if found.still:
        unstick.check(target, found, end_tracer=end_tracer)
        if found.tracers and not yes:
            console.block(_RISK, err=True)
            require_yes("Kill the debugger?", f"innoscope unstick --pid {target.pid} --end-tracer")
        done = unstick.rescue(target, found, end_tracer=end_tracer)
    _show_done(target, found, done, as_json)


def _watch(target: Target, patience: float, as_json: bool) -> None:
    if not as_json:
        console.line(f"watching process {target.pid}: resumed if stopped for more than {patience:g} s")
    for found in unstick.stopped_for(target, patience):
        _show_found(target, found, as_json)
        try:
            done = unstick.rescue(target, found, end_tracer=True)
        except ChangeFailed as failure:
            if as_json:
                console.document({"at": time.time(), "error": failure.what, "remedy": failure.remedy})
            else:
                console.lines([failure.what])
        else:
            _show_done(target, found, done, as_json)


def _show_found(target: Target, found: ThreadStates, as_json: bool) -> None:
    """Print the number of stopped threads, and the processes that trace the server."""
    if as_json:
        return
    runs = (
        "nothing to do: the server is traced, but running"
        if found.tracers
        else "nothing to do: no thread is stopped"
    )
    console.line(f"{clock(time.time())} {title(target)}: {found if found.still else runs}")
    for one in found.tracers:
        since = clock(one.started)
        console.lines([f"  {one.name}, pid {one.pid}, of {one.owner}, running since {since}: {one.command}"])


def _show_done(target: Target, found: ThreadStates, done: Rescue | None, as_json: bool) -> None:
    """Print the result, and the reason if it could not be written to the journal."""
    if as_json:
        rescue = None if done is None else asdict(done)
        document = {"target": target.document(), "found": asdict(found), "rescue": rescue}
        console.document({"at": time.time(), **document})
    elif done is not None:
        answer = "answers" if done.answered else "does not listen yet; it may be starting or recovering"
        steps = ", ".join(done.steps)
        console.lines([f"{steps}: running and not traced after {done.seconds:.2f} s; the server {answer}"])
    if done is not None and done.journal is not None:
        console.lines([f"cannot record this in the journal: {done.journal}"], err=True)
