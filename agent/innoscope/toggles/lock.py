"""Allow only one change at a time on each server."""

from __future__ import annotations

import fcntl
import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

from innoscope.toggles.model import ChangeRefused
from innoscope.toggles.paths import make_private

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from innoscope.toggles.journal_format import ServerId


class AlreadyLocked(ChangeRefused):
    """Another process is changing this server."""


@contextmanager
def held(folder: Path, server: ServerId) -> Iterator[None]:
    """Hold the server's lock.

    Raise AlreadyLocked if another process holds it, or ChangeRefused if the lock file cannot be created.

    ``folder`` is the state directory. The name of the lock file contains the server's pid, start time and
    boot id. If this process is killed, the kernel releases the lock.
    """
    pid, start_time, boot = server.life
    path = folder / "locks" / f"{pid}-{start_time}-{boot}"
    try:
        make_private(path.parent)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise ChangeRefused(
            f"cannot lock the server: {path}: {error.strerror}", remedy="run it as root: sudo innoscope …"
        ) from error
    try:
        _lock_file(descriptor, server.pid)
        yield
    finally:
        os.close(descriptor)


def _lock_file(descriptor: int, pid: int) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.pread(descriptor, 20, 0).decode(errors="replace").strip() or "unknown"
        raise AlreadyLocked(
            f"process {holder} is changing server {pid} right now",
            remedy=f"wait until it exits; to see what it is doing: ps -fp {holder}",
        ) from None
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
