"""Manage a directory of incident files, and limit their number and total size."""

from __future__ import annotations

import os
import re
import stat
import tempfile
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from innoscope.common.errors import CannotWrite
from innoscope.diagnose.incident import files

if TYPE_CHECKING:
    from pathlib import Path

    from innoscope.diagnose.incident.model import Capture

#: Number of bytes that ``prepare`` writes as a test. It is larger than most incident files.
_TEST_BYTES: Final = 1 << 20
_PREFIX: Final = "stall-"
_OURS: Final = re.compile(r"stall-[a-z]+-[0-9]+-[0-9]{8}T[0-9]{6}Z\.innoscope")
#: Name that ``files.save`` gives to a partial file, which remains if the writer is killed.
_PARTIAL: Final = re.compile(r"\.stall-[a-z]+-[0-9]+-[0-9]{8}T[0-9]{6}Z\.innoscope\.[0-9a-f]{8}\.part")


@dataclass(frozen=True, slots=True)
class FolderLimits:
    """Limits on the directory's incident files. The oldest files beyond a limit are deleted."""

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

    def __init__(self, folder: Path, bounds: FolderLimits) -> None:
        self.folder, self._bounds = folder, bounds

    def prepare(self) -> None:
        """Create the directory with mode 0700 if it is missing, and write and delete a file as a test.

        Also delete the partial files of writers that were killed. Raise CannotWrite if this fails, for
        example because the disk is full.
        """
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            why = f"cannot create {self.folder}: {error.strerror}"
            raise CannotWrite(why, remedy="--dir OTHER") from error
        try:
            for path in self.folder.glob(".stall-*.part"):
                if _PARTIAL.fullmatch(path.name) and _own_file(path) is not None:
                    path.unlink(missing_ok=True)
            with tempfile.TemporaryFile(dir=self.folder) as file:
                file.write(bytes(_TEST_BYTES))
        except OSError as error:
            why = f"cannot write in {self.folder}: {error.strerror}"
            raise CannotWrite(why, remedy="--dir OTHER") from error

    def save(self, capture: Capture) -> Path:
        """Write a capture, and delete the oldest files beyond the limits. Raise CannotWrite on failure."""
        path = self.folder / (_PREFIX + files.name_for(capture))
        files.save(path, capture)
        self._keep_within(path.name)
        return path

    def incidents(self) -> list[IncidentFile]:
        """Return the user's own incident files, newest first; empty if the directory cannot be read."""
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


def is_incident_name(name: str) -> bool:
    """Return whether this is the name of an incident file that ``save`` writes."""
    return _OURS.fullmatch(name) is not None


def _own_file(path: Path) -> os.stat_result | None:
    """Return the status of a regular file that this process's user owns; None for anything else."""
    try:
        about = path.lstat()
    except OSError:
        return None
    return about if stat.S_ISREG(about.st_mode) and about.st_uid == os.geteuid() else None
