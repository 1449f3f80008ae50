"""Manage a folder of incident files, and limit their number and total size."""

from __future__ import annotations

import os
import re
import stat
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from innoscope.common.errors import CannotWrite
from innoscope.diagnose.incident import files

if TYPE_CHECKING:
    from pathlib import Path

    from innoscope.diagnose.incident.model import Capture

_PREFIX: Final = "stall-"
_OURS: Final = re.compile(r"stall-[a-z]+-[0-9]+-[0-9]{8}T[0-9]{6}Z\.innoscope")
#: A partial file whose writer was killed, as named by ``files.save``.
_PARTIAL: Final = re.compile(r"\.stall-[a-z]+-[0-9]+-[0-9]{8}T[0-9]{6}Z\.innoscope\.[0-9a-f]{8}\.part")


@dataclass(frozen=True, slots=True)
class Bounds:
    """Limits on the folder's incident files. The oldest files beyond a limit are deleted."""

    files: int = 20
    bytes: int = 200 << 20


@dataclass(frozen=True, slots=True)
class IncidentFile:
    """An incident file: its name, size in bytes, and Unix time of writing."""

    name: str
    bytes: int
    at: float


class IncidentFolder:
    """The incident files that this process's user owns. Files with other owners or names are ignored."""

    def __init__(self, folder: Path, bounds: Bounds) -> None:
        self.folder, self._bounds = folder, bounds

    def prepare(self) -> None:
        """Create the folder with mode 0700 if it is missing. Raise CannotWrite if it is not writable."""
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            why = f"cannot create {self.folder}: {error.strerror}"
            raise CannotWrite(why, remedy="--dir OTHER") from error
        if not os.access(self.folder, os.W_OK | os.X_OK):
            raise CannotWrite(f"cannot write in {self.folder}: permission denied", remedy="--dir OTHER")
        for path in self.folder.glob(".stall-*.part"):
            if _PARTIAL.fullmatch(path.name) and _own_file(path) is not None:
                path.unlink(missing_ok=True)

    def save(self, capture: Capture) -> Path:
        """Write a capture, and delete the oldest files beyond the limits. Raise CannotWrite on failure."""
        path = self.folder / (_PREFIX + files.name_for(capture))
        files.save(path, capture)
        self._keep_within(path.name)
        return path

    def incidents(self) -> list[IncidentFile]:
        """Return the incident files that this process's user owns, newest first."""
        found = []
        try:
            paths = list(self.folder.iterdir())
        except OSError:
            return []
        for path in paths:
            about = _own_file(path) if _OURS.fullmatch(path.name) else None
            if about is not None:
                found.append(IncidentFile(path.name, about.st_size, about.st_mtime))
        return sorted(found, key=lambda one: (one.at, one.name), reverse=True)

    def _keep_within(self, newest: str) -> None:
        total = 0
        for number, file in enumerate(self.incidents(), 1):
            total += file.bytes
            beyond = number > self._bounds.files or total > self._bounds.bytes
            if beyond and file.name != newest:
                (self.folder / file.name).unlink(missing_ok=True)


def _own_file(path: Path) -> os.stat_result | None:
    """Return the status of a regular file that this process's user owns; None for anything else."""
    try:
        about = path.lstat()
    except OSError:
        return None
    return about if stat.S_ISREG(about.st_mode) and about.st_uid == os.geteuid() else None
