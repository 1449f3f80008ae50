"""Where changes are remembered on this host."""

from __future__ import annotations

import os
from pathlib import Path

from innoscope.target.proc import ProcFs


def state_folder() -> Path:
    """The folder of the journal and the locks: ``$INNOSCOPE_STATE``, else /var/lib/innoscope."""
    return Path(os.environ.get("INNOSCOPE_STATE") or "/var/lib/innoscope")


def make_private(folder: Path) -> None:
    """The folder, made for its owner only where it is not there. Raises OSError."""
    for missing in reversed([one for one in (folder, *folder.parents) if not one.exists()]):
        missing.mkdir(mode=0o700, exist_ok=True)
        sync(missing.parent)


def sync(folder: Path) -> None:
    """Make sure that the folder's new entries outlive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def boot_id() -> str:
    """What tells this boot of the host from all others."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def lives(pid: int, start_time: int, boot: str, proc: ProcFs | None = None) -> bool:
    """Whether that very process is still there."""
    try:
        stat = (proc or ProcFs()).stat(pid)
    except (ProcessLookupError, PermissionError):
        return False
    return boot == boot_id() and stat.start_time == start_time and stat.state not in "ZX"
