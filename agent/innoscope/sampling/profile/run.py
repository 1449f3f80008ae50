"""Running a profile for some seconds, until interrupted or until the server ends."""

from __future__ import annotations

import os
import select
import time
from typing import TYPE_CHECKING, Final, Protocol

from innoscope.common.errors import KernelUnable
from innoscope.target.container import FIRST_PID_NAMESPACE
from innoscope.target.discover import still_same
from innoscope.target.native_errors import gone

if TYPE_CHECKING:
    from collections.abc import Callable

    from innoscope.sampling.profile.model import Profile
    from innoscope.target.model import Target

#: Between two readings of the ring buffer, which has room for several times as much.
POLL_S: Final = 0.02
#: Between two lines of progress.
_TELL_S: Final = 1.0


class Profiler(Protocol):
    """One way of profiling one server: OnCpuProfiler, OffCpuProfiler."""

    def begin(self) -> None:
        """From now on."""

    def poll(self) -> None:
        """Take what has come."""

    def so_far(self) -> str:
        """In some words."""

    def finish(self) -> Profile:
        """Until now; nothing is attached any more."""


def run(
    profiler: Profiler, target: Target, seconds: float, tell: Callable[[float, str], None] | None = None
) -> tuple[Profile, bool]:
    """The profile, and whether the server was there to the end.

    Ctrl-C and the end of the server end it early, and ``ended`` says so; ``tell`` is given the seconds gone
    and what is known, once a second. Raises NoSuchProcess when the server is not there to begin with.
    """
    alive, ended = True, None
    process = _open(target)
    began = time.monotonic()
    try:
        profiler.begin()
        alive = _until(profiler, process, began, seconds, tell)
    except KeyboardInterrupt:
        ended = f"interrupted after {time.monotonic() - began:.1f} of {seconds:g} s"
    finally:
        os.close(process)
    if not alive:
        ended = f"the server ended after {time.monotonic() - began:.1f} of {seconds:g} s"
    profile = profiler.finish()
    profile.ended = ended
    return profile, alive


def _until(
    profiler: Profiler,
    process: int,
    began: float,
    seconds: float,
    tell: Callable[[float, str], None] | None,
) -> bool:
    """False when the server ended before its time."""
    watch = select.poll()
    watch.register(process, select.POLLIN)
    told = 0.0
    while (gone_by := time.monotonic() - began) < seconds:
        ready = watch.poll(max(1, min(POLL_S, seconds - gone_by) * 1e3))
        profiler.poll()
        if ready:
            return False
        if tell is not None and gone_by - told >= _TELL_S:
            told = gone_by
            tell(gone_by, profiler.so_far())
    return True


def _open(target: Target) -> int:
    """A descriptor of that very process, which is ready once it ends."""
    try:
        process = os.pidfd_open(target.pid)
    except ProcessLookupError as error:
        raise gone(target.pid) from error
    if not still_same(target):
        os.close(process)
        raise gone(target.pid)
    return process


def require_first_namespace(path: str = "/proc/self/ns/pid") -> None:
    """Raise KernelUnable in a container with pids of its own: the programs would look for the wrong one."""
    if os.stat(path).st_ino != FIRST_PID_NAMESPACE:  # noqa: PTH116
        raise KernelUnable(
            "this container has process ids of its own, and the kernel's programs know those of the host",
            remedy="run it on the host, or in a container with the host's pids: docker run --pid=host …",
        )
