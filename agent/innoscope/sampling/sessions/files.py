"""Name and list the history's directories, each of which has one Parquet file per table.

A directory is written under a hidden name and renamed when it is complete. The name of a merged directory
shows which directories it replaces. Therefore readers see each row exactly once, even if the writer is
killed.
"""

from __future__ import annotations

import datetime
import re
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

#: The tables, in the order in which they are written.
TABLES: Final = ("stacks", "digests", "snapshots", "samples")
HOUR_S: Final = 3_600
#: An hour, and the first and last number of the parts that the directory contains.
_NAME: Final = re.compile(r"(\d{4}-\d{2}-\d{2}T\d{2})Z\.(\d{6,12})-(\d{6,12})", re.ASCII)
#: Prefix of directories that are being written or removed.
HIDDEN: Final = "."


class HistoryPart(NamedTuple):
    """A directory: its hour (in hours since 1970), and the first and last number of the parts it contains.

    Numbers increase in the order of writing, regardless of the clock.
    """

    hour: int
    first: int
    last: int
    path: Path

    def replaces(self, other: HistoryPart) -> bool:
        """Return whether this directory contains all rows of the other directory."""
        inside = self.first <= other.first and other.last <= self.last
        return self.hour == other.hour and inside and self.path != other.path

    def file(self, table: str) -> Path:
        """Return the path of a table's file."""
        return self.path / f"{table}.parquet"

    @property
    def bytes(self) -> int:
        """Return the size of all files."""
        return sum(file.stat().st_size for file in self.path.iterdir())


def name(hour: int, first: int, last: int) -> str:
    """Return the name of a directory."""
    start = datetime.datetime.fromtimestamp(hour * HOUR_S, datetime.UTC)
    return f"{start:%Y-%m-%dT%H}Z.{first:06}-{last:06}"


def parse(path: Path) -> HistoryPart | None:
    """Return the part in a directory; None if the directory does not have the name of a part."""
    match = _NAME.fullmatch(path.name)
    if match is None:
        return None
    try:
        start = datetime.datetime.strptime(match[1], "%Y-%m-%dT%H").replace(tzinfo=datetime.UTC)
    except ValueError:
        return None
    return HistoryPart(int(start.timestamp()) // HOUR_S, int(match[2]), int(match[3]), path)


def all_parts(folder: Path) -> list[HistoryPart]:
    """Return all parts, including replaced ones, in the order of writing.

    Raise OSError if the directory cannot be read.
    """
    parts = [part for path in folder.iterdir() if (part := parse(path)) and path.is_dir()]
    return sorted(parts, key=lambda part: (part.first, part.last))


def replaced(parts: Iterable[HistoryPart]) -> list[HistoryPart]:
    """Return the parts that other parts replace."""
    by_hour: dict[int, list[HistoryPart]] = {}
    for part in parts:
        by_hour.setdefault(part.hour, []).append(part)
    return [one for same in by_hour.values() for one in same if any(other.replaces(one) for other in same)]


def live_parts(folder: Path) -> list[HistoryPart]:
    """Return the parts that no other part replaces, in the order of writing.

    Raise OSError if the directory cannot be read.
    """
    parts = all_parts(folder)
    gone = set(replaced(parts))
    return [part for part in parts if part not in gone]
