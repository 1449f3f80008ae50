"""Identify a server's data directory by inode, which stays the same across restarts."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from innoscope import _native

if TYPE_CHECKING:
    from collections.abc import Iterable

    from innoscope.target.model import Target
    from innoscope.target.proc import ProcFs


@dataclass(frozen=True, slots=True)
class DataDirectory:
    """A data directory, identified independently of its path, and the uid of its server."""

    device: int
    inode: int
    uid: int


def data_directory_of(proc: ProcFs, target: Target) -> DataDirectory | None:
    """Return the server's data directory if it is the process's current directory, else None.

    If ``target.datadir`` is unknown, the current directory is assumed to be the data directory. This may
    block forever if the server's file system does not respond.

    Command-line options prove nothing, because any process can be started with another server's options. But
    no process can enter a directory without permission.
    """
    found = working_directory_of(proc, target.pid)
    if found is None or not target.datadir:
        return found
    try:
        named = _native.file_identity(proc.inside(target.pid, target.datadir))
    except OSError:
        return None
    return found if named == (found.device, found.inode) else None


def working_directory_of(proc: ProcFs, pid: int) -> DataDirectory | None:
    """Return the process's current directory if its user owns the directory or is root; None for ``/``.

    Command-line options are not considered.
    """
    try:
        here, root = os.stat(proc.path(pid, "cwd")), os.stat(proc.path(pid, "root"))  # noqa: PTH116
        uids = proc.owner(pid).uids
    except OSError:
        return None
    if os.path.samestat(here, root) or (here.st_uid not in uids and set(uids) != {0}):
        return None
    return DataDirectory(here.st_dev, here.st_ino, uids[1])


def duplicates(proc: ProcFs, targets: Iterable[Target]) -> dict[int, int]:
    """Return ``{pid: pid of the older server with the same data directory}``."""
    first: dict[DataDirectory, int] = {}
    found = {}
    for target in sorted(targets, key=lambda one: (one.start_time, one.pid)):
        home = data_directory_of(proc, target)
        if home is not None and first.setdefault(home, target.pid) != target.pid:
            found[target.pid] = first[home]
    return found
