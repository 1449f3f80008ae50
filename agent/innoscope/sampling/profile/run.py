"""Run a profile for a given time, ending early on Ctrl-C or if the server exits."""

from __future__ import annotations

import os
import select
import time
from typing import TYPE_CHECKING, Final, Protocol

from innoscope.target.discover import still_same
from innoscope.target.native_errors import gone

if TYPE_CHECKING:
    from collections.abc import Callable

    from innoscope.sampling.profile.model import Profile
    from innoscope.target.model import Target

#: Seconds between two reads of the ring buffer, which can hold the samples of several such intervals.
POLL_S: Final = 0.02
#: Seconds between two progress reports.
_PROGRESS_S: Final = 1.0


class Profiler(Protocol):
    """A profiler of one server: OnCpuProfiler or OffCpuProfiler."""

    def begin(self) -> None:
        """Start sampling."""

    def poll(self) -> None:
        """Read new samples."""

    def progress_text(self) -> str:
        """Return a short summary of the samples so far."""

    def finish(self) -> Profile:
        """Detach everything and return the profile."""


def run(
    profiler: Profiler,
    target: Target,
    seconds: float,
    on_progress: Callable[[float, str], None] | None = None,
) -> tuple[Profile, bool]:
    """Run the profiler for ``seconds``. Return the profile, and whether the server is still running.

    Ctrl-C or the server's exit ends the profile early, and ``Profile.ended`` contains the reason.
    ``on_progress`` is called once a second with the elapsed seconds and a message. Raise
    NoSuchProcess if the server is not running at the start.
    """
    alive, ended = True, None
    process = open_process(target)
    began = time.monotonic()
    try:
        profiler.begin()
        began = time.monotonic()  # starting can take seconds on a slow host
        alive = _poll_until(profiler, process, began, seconds, on_progress)
    except KeyboardInterrupt:
        ended = f"interrupted after {time.monotonic() - began:.1f} of {seconds:g} s"
    finally:
        os.close(process)
    if not alive:
        ended = f"the server exited after {time.monotonic() - began:.1f} of {seconds:g} s"
    profile = profiler.finish()
    profile.ended = ended
    return profile, alive


def _poll_until(
    profiler: Profiler,
    process: int,
    began: float,
    seconds: float,
    on_progress: Callable[[float, str], None] | None,
) -> bool:
    """Poll for ``seconds``. Return False if the server exited earlier."""
    watch = select.poll()
    watch.register(process, select.POLLIN)
    reported = 0.0
    while (elapsed := time.monotonic() - began) < seconds:
        ready = watch.poll(max(1, min(POLL_S, seconds - elapsed) * 1e3))
        profiler.poll()
        if ready:
            return False
        if on_progress is not None and elapsed - reported >= _PROGRESS_S:
            reported = elapsed
            on_progress(elapsed, profiler.progress_text())
    return True


def open_process(target: Target) -> int:
    """Return a pidfd of the target's process, which becomes readable when the process exits.

    Raise NoSuchProcess if the process has exited.
    """
    try:
        process = os.pidfd_open(target.pid)
    except ProcessLookupError as error:
        raise gone(target.pid) from error
    if not still_same(target):
        os.close(process)
        raise gone(target.pid)
    return process
