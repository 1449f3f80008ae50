"""A server's data directory as the kernel knows it: what one server and its successor have in common."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from innoscope.target.model import Target
    from innoscope.target.proc import ProcFs


@dataclass(frozen=True, slots=True)
class Home:
    """A directory, whatever its name in which file system, and the user that has it as data directory."""

    device: int
    inode: int
    uid: int


def home_of(proc: ProcFs, target: Target) -> Home | None:
    """Return the directory that the server has changed to, if it is its own; None before that.

    A process may repeat the options of another one, but it cannot enter a directory that it has no right to.
    """
    found = directory_of(proc, target.pid)
    if found is None or not target.datadir:
        return found
    try:
        named = os.stat(proc.inside(target.pid, target.datadir))  # noqa: PTH116
    except OSError:
        return None
    return found if (named.st_dev, named.st_ino) == (found.device, found.inode) else None


def directory_of(proc: ProcFs, pid: int) -> Home | None:
    """Return the same without the server's options: any directory of its own that it has changed to."""
    try:
        here, root = os.stat(proc.path(pid, "cwd")), os.stat(proc.path(pid, "root"))  # noqa: PTH116
        uids = proc.owner(pid).uids
    except OSError:
        return None
    if os.path.samestat(here, root) or (here.st_uid not in uids and set(uids) != {0}):
        return None
    return Home(here.st_dev, here.st_ino, uids[1])


def duplicates(proc: ProcFs, targets: Iterable[Target]) -> dict[int, int]:
    """Return ``{pid: pid of the server that was on its data directory first}``."""
    first: dict[Home, int] = {}
    found = {}
    for target in sorted(targets, key=lambda one: (one.start_time, one.pid)):
        home = home_of(proc, target)
        if home is not None and first.setdefault(home, target.pid) != target.pid:
            found[target.pid] = first[home]
    return found
