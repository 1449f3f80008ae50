"""The folder of the recorder's incident files: bounded in number and bytes, and only its own are removed."""

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
#: What is left of a file whose writer was killed; ``files.save`` names them so.
_PARTIAL: Final = re.compile(r"\.stall-[a-z]+-[0-9]+-[0-9]{8}T[0-9]{6}Z\.innoscope\.[0-9a-f]{8}\.part")


@dataclass(frozen=True, slots=True)
class Bounds:
    """What there may be in the folder; beyond it the oldest go first."""

    files: int = 20
    bytes: int = 200 << 20


@dataclass(frozen=True, slots=True)
class Kept:
    """One file: its name, size, and Unix time of writing."""

    name: str
    bytes: int
    at: float


class Shelf:
    """Files that were written by us, a user: those of others, and of other names, are not ours."""

    def __init__(self, folder: Path, bounds: Bounds) -> None:
        self.folder, self._bounds = folder, bounds

    def prepare(self) -> None:
        """Make the folder, for us only, where there is none. Raises CannotWrite where we may not write."""
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise CannotWrite(f"cannot make {self.folder}: {error.strerror}", remedy="--dir OTHER") from error
        if not os.access(self.folder, os.W_OK | os.X_OK):
            raise CannotWrite(f"no right to write in {self.folder}", remedy="--dir OTHER")
        for path in self.folder.glob(".stall-*.part"):
            if _PARTIAL.fullmatch(path.name) and _own_file(path) is not None:
                path.unlink(missing_ok=True)

    def put(self, capture: Capture) -> Path:
        """Write a capture, and remove the oldest of ours beyond the bounds. Raises CannotWrite."""
        path = self.folder / (_PREFIX + files.name_for(capture))
        files.save(path, capture)
        self._keep_within(path.name)
        return path

    def kept(self) -> list[Kept]:
        """Ours, the newest first."""
        found = []
        try:
            paths = list(self.folder.iterdir())
        except OSError:
            return []
        for path in paths:
            about = _own_file(path) if _OURS.fullmatch(path.name) else None
            if about is not None:
                found.append(Kept(path.name, about.st_size, about.st_mtime))
        return sorted(found, key=lambda one: (one.at, one.name), reverse=True)

    def _keep_within(self, newest: str) -> None:
        total = 0
        for number, kept in enumerate(self.kept(), 1):
            total += kept.bytes
            beyond = number > self._bounds.files or total > self._bounds.bytes
            if beyond and kept.name != newest:
                (self.folder / kept.name).unlink(missing_ok=True)


def _own_file(path: Path) -> os.stat_result | None:
    """A regular file of our user, not a link to one."""
    try:
        about = path.lstat()
    except OSError:
        return None
    return about if stat.S_ISREG(about.st_mode) and about.st_uid == os.geteuid() else None
