"""Locate the directory of the journal and the locks, and identify processes across reboots."""

from __future__ import annotations

import os
from pathlib import Path

from innoscope.common.folders import sync
from innoscope.target.proc import ProcFs


def state_folder() -> Path:
    """Return the directory of the journal and the locks: ``$INNOSCOPE_STATE``, else /var/lib/innoscope."""
    return Path(os.environ.get("INNOSCOPE_STATE") or "/var/lib/innoscope")


def make_private(folder: Path) -> None:
    """Create the directory and its missing parents with mode 0700. Raise OSError if one cannot be created."""
    for missing in reversed([one for one in (folder, *folder.parents) if not one.exists()]):
        missing.mkdir(mode=0o700, exist_ok=True)
        sync(missing.parent)


def boot_id() -> str:
    """Return the unique id of this boot of the host."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def lives(pid: int, start_time: int, boot: str, proc: ProcFs | None = None) -> bool:
    """Return whether the process with this pid, start time and boot id is still running."""
    try:
        stat = (proc or ProcFs()).stat(pid)
    except (ProcessLookupError, PermissionError):
        return False
    return boot == boot_id() and stat.start_time == start_time and stat.state not in "ZX"
