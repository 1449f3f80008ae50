"""Starts the watchdog and takes its report; if the watchdog is killed, puts the server right itself."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final, cast

from innoscope.target.native_errors import gone
from innoscope.toggles import watchdog_main
from innoscope.toggles.handle import Handle
from innoscope.toggles.model import ChangeFailed

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from innoscope.target.model import Target

_SCRIPT: Final = Path(watchdog_main.__file__)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one gdb.

    ``called`` is True, False, or None where it died at the very moment. ``refused`` is why it did nothing,
    ``held_s`` for how long it held the server (None when it did not come to its end), ``killed`` why the
    watchdog ended it, ``righted_s`` how long it then took until the server ran untraced.
    """

    called: bool | None
    refused: str | None
    held_s: float | None
    killed: str | None
    righted_s: float
    status: int
    said: str


def run(
    target: Target,
    command: Sequence[str],
    environment: Mapping[str, str],
    *,
    held_s: float,
    deadline_s: float,
) -> Outcome:
    """Have the watchdog run ``command``, a gdb, and return when the server runs untraced.

    gdb may hold the server for ``held_s`` seconds and take ``deadline_s`` in all. Raises NoSuchProcess, and
    ChangeFailed when the server could not be put right.
    """
    order = {
        "pid": target.pid, "start_time": target.start_time, "command": list(command),
        "environment": dict(environment), "held_s": held_s, "deadline_s": deadline_s,
    }  # fmt: skip
    server = Handle.open(target.pid, target.start_time, f"the server (pid {target.pid})")
    if server is None:
        raise gone(target.pid)
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", str(_SCRIPT)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,  # Ctrl-C in the terminal is for us
    )
    orders, report = cast("IO[bytes]", process.stdin), cast("IO[bytes]", process.stdout)
    try:
        with contextlib.suppress(BrokenPipeError):
            orders.write(json.dumps(order).encode() + b"\n")
            orders.flush()
        line = report.readline()
        if not line:
            _watch_over(target, server)
            raise ChangeFailed(
                f"the watchdog over gdb on process {target.pid} was killed; the server runs on",
                remedy="try again",
            )
        return _outcome(target, json.loads(line))
    finally:
        with contextlib.suppress(BrokenPipeError):
            orders.close()
        process.wait()
        report.close()
        server.close()


def _watch_over(target: Target, server: Handle) -> None:
    """The watchdog is dead, and the kernel has killed gdb with it."""
    if watchdog_main.put_right(target.pid, server.pidfd, None) is None:
        raise _stuck(target)


def _stuck(target: Target) -> ChangeFailed:
    return ChangeFailed(
        f"process {target.pid} is stopped or traced and does not go on",
        remedy=f"innoscope unstick --pid {target.pid}",
    )


def _outcome(target: Target, result: Mapping[str, Any]) -> Outcome:
    if result.get("gone"):
        raise gone(target.pid)
    if result["righted_s"] is None:
        if watchdog_main.start_time(target.pid) != target.start_time:
            raise gone(target.pid)
        raise _stuck(target)
    events = {event["event"]: event for event in result["events"]}
    called: bool | None = "called" in events
    if "calling" in events and not called:
        called = None
    return Outcome(
        called=called,
        refused=events.get("refused", {}).get("reason"),
        held_s=events.get("detached", {}).get("held_s"),
        killed=result["killed"],
        righted_s=result["righted_s"],
        status=result["status"],
        said=result["said"],
    )
