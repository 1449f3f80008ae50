"""The keeper process of ``servers.keeper``. It runs under ``python -I -S``, without site packages."""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import sys

#: Maximum milliseconds to wait for a killed process to exit before its directory is removed.
_GONE_MS = 10_000


def main() -> None:
    """Read commands until the pipe closes, then clean up."""
    for sig in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(sig, signal.SIG_IGN)
    watched: dict[str, int] = {}
    folders: set[str] = set()
    for line in sys.stdin:
        verb, _, value = line.rstrip("\n").partition(" ")
        if verb == "watch":
            with contextlib.suppress(ProcessLookupError):
                watched[value] = os.pidfd_open(int(value))
        elif verb == "forget":
            with contextlib.suppress(KeyError):
                os.close(watched.pop(value))
        elif verb == "remove":
            folders.add(value)
        elif verb == "keep":
            folders.discard(value)
    for pidfd in watched.values():
        _kill(pidfd)
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)


def _kill(pidfd: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
    poller = select.poll()
    poller.register(pidfd, select.POLLIN)
    poller.poll(_GONE_MS)


if __name__ == "__main__":
    main()
