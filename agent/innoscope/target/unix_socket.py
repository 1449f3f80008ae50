"""Reach a server's Unix socket that is in another file system or has a long path."""

from __future__ import annotations

import os
from contextlib import contextmanager
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from innoscope.common.errors import SqlFailed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from innoscope.target.model import Target
    from innoscope.target.proc import ProcFs

_SUN_PATH = 107  # maximum length of a Unix socket's path in bytes, without the final NUL (unix(7))


@contextmanager
def socket_from_here(proc: ProcFs, target: Target, path: str) -> Iterator[str]:
    """Yield a path to the server's socket for connect(2), valid within the context.

    Raise SqlFailed if the path is too long for a socket address and its directory cannot be opened.

    The path goes through /proc/PID/root, which is correct in other mount namespaces and chroots. If its
    directory is not accessible, the path below the server's root directory is used instead.
    """
    seen = proc.inside(target.pid, path)
    if not os.access(PurePosixPath(seen).parent, os.X_OK):
        seen = target.root.rstrip("/") + path
    with _short(seen) as reachable:
        yield reachable


@contextmanager
def _short(path: str) -> Iterator[str]:
    """Yield a path that fits into sun_path. Long paths go through a descriptor of their directory."""
    if len(os.fsencode(path)) <= _SUN_PATH:
        yield path
        return
    try:
        directory = os.open(PurePosixPath(path).parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise SqlFailed(f"cannot reach {path}: {error.strerror}", remedy="innoscope targets") from error
    try:
        yield f"/proc/self/fd/{directory}/{PurePosixPath(path).name}"
    finally:
        os.close(directory)
