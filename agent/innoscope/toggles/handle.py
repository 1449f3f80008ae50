"""A process held by a pidfd: a signal never reaches another process that was given its id meanwhile."""

from __future__ import annotations

import errno
import os
import select
import signal
from typing import TYPE_CHECKING

from innoscope.errors import KernelUnable, NoRights
from innoscope.target.proc import ProcFs

if TYPE_CHECKING:
    from types import TracebackType


class Handle:
    """One process. A context manager; ``who`` names it in errors."""

    def __init__(self, pidfd: int, who: str) -> None:
        self.pidfd = pidfd
        self._who = who

    @classmethod
    def open(cls, pid: int, start_time: int, who: str) -> Handle | None:
        """Return a handle on the process that began at ``start_time``; None when it has ended.

        Raises KernelUnable where the kernel (before 5.3) or this Python has no pidfds.
        """
        try:
            pidfd = os.pidfd_open(pid)
        except ProcessLookupError:
            return None
        except (AttributeError, OSError) as error:
            raise _no_pidfd(pid, who, error) from error
        handle = cls(pidfd, who)
        try:
            if ProcFs().stat(pid).start_time == start_time:
                return handle
        except ProcessLookupError:
            pass
        handle.close()
        return None

    def __enter__(self) -> Handle:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the process."""
        os.close(self.pidfd)

    def send(self, number: int) -> None:
        """Send a signal; a process that has ended needs none. Raises NoRights."""
        try:
            signal.pidfd_send_signal(self.pidfd, number)
        except ProcessLookupError:
            return
        except PermissionError as error:
            raise NoRights(
                f"cannot signal {self._who}: {error.strerror}", remedy="sudo innoscope unstick …"
            ) from error

    def ended(self, within_s: float = 0.0) -> bool:
        """Wait for the end of the process, at most so long, and return whether it has ended."""
        poll = select.poll()
        poll.register(self.pidfd, select.POLLIN)
        return bool(poll.poll(within_s * 1000))


def _no_pidfd(pid: int, who: str, error: Exception) -> KernelUnable:
    why = "this Python has none" if isinstance(error, AttributeError) else str(error)
    if getattr(error, "errno", None) == errno.ENOSYS:
        why = "this kernel has none"
    return KernelUnable(
        f"cannot signal {who} by a pidfd, which alone cannot hit another process: {why}",
        remedy=f"check yourself that pid {pid} is still the right one, then: kill -CONT {pid}",
    )
