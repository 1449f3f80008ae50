"""Search a server's executable, as mapped into its memory, for names, tables and variables."""

from __future__ import annotations

import contextlib
import time
from array import array
from bisect import bisect_right
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from innoscope.common.errors import NotRead
from innoscope.memory.numbers import read_many
from innoscope.target.native_errors import gone, no_rights

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

#: Maximum number of bytes per read.
_PIECE: Final = 1 << 20
#: Maximum number of bytes read from /proc/PID/maps, the same as in the Rust core (limits.rs). With 1,000
#: connections, this file is 250 KB in size.
_MAPS: Final = 8 << 20
#: Maximum number of mappings of the executable; the largest server has 7.
_REGIONS: Final = 1024
#: Maximum size of the mapped executable in bytes: four times the largest known (78 MiB in MySQL 9.7).
_IMAGE: Final = 320 << 20
#: Maximum size of its writable mappings in bytes. The largest known are 9.9 MiB (MariaDB 11.4.5).
_DATA: Final = 48 << 20
#: Maximum number of bytes read from the heap if it directly follows .bss, as it does without address space
#: layout randomization (ASLR). The variables in .bss come first.
_HEAP: Final = 32 << 20
#: Maximum number of pointers in one row; a longer row is not a table. The longest table known has 156
#: pointers (MariaDB 10.5).
_ROW: Final = 1024
#: Maximum number of copies of one name; real servers have 2.
_COPIES: Final = 16
#: Maximum number of pointers to these copies; real servers have 3.
_SLOTS: Final = 64
#: Maximum CPU seconds spent on one image; real servers need 0.02 to 0.15.
_CPU_S: Final = 0.8


@dataclass(frozen=True, slots=True)
class Region:
    """One mapping of the executable. ``data`` is true if it is writable, ``code`` if it is executable."""

    start: int
    end: int
    data: bool
    code: bool


class Image:
    """The executable as mapped into the process, relocated by the dynamic linker.

    Use an image immediately, in the thread that created it: the limit on CPU time counts that thread's time
    since then. Methods raise NotRead if a limit is exceeded.
    """

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._deadline = time.thread_time() + _CPU_S
        self.regions = _regions(pid)
        self._starts = [region.start for region in self.regions]

    def at(self, address: int) -> Region | None:
        """Return the region that contains the address, or None."""
        index = bisect_right(self._starts, address) - 1
        return self.regions[index] if index >= 0 and address < self.regions[index].end else None

    def is_data(self, address: int) -> bool:
        """Return whether the address is in a writable region, which contains variables."""
        region = self.at(address)
        return region is not None and region.data

    def copies(self, text: bytes) -> list[int]:
        """Return the addresses of all copies of ``text``."""
        found: list[int] = []
        for region in self.regions:
            for start, piece in self._pieces(region, len(text) - 1):
                at = piece.find(text)
                while at >= 0:
                    found.append(start + at)
                    self._limit("copies of one name", len(found), _COPIES)
                    at = piece.find(text, at + 1)
        return found

    def slots(self, addresses: Sequence[int]) -> list[int]:
        """Return the addresses of pointers to ``addresses``, starting with those in writable regions."""
        needles = [address.to_bytes(8, "little") for address in addresses]
        found: list[int] = []
        if not needles:
            return found
        for start, piece in self._pieces_of_data():
            for needle in needles:
                at = piece.find(needle)
                while at >= 0:
                    if (start + at) % 8 == 0:
                        found.append(start + at)
                        self._limit("pointers to one name", len(found), _SLOTS)
                    at = piece.find(needle, at + 1)
        return found

    def rows(self, least: int) -> Iterator[list[int]]:
        """Yield rows of at least ``least`` adjacent pointers to data."""
        data = [region for region in self.regions if region.data]
        if not data:
            return
        first, end = data[0].start, data[-1].end
        row: list[int] = []
        continues = 0
        for start, piece in self._pieces_of_data():
            if start != continues:
                row = []
            continues = start + len(piece)
            for word in array("Q", piece[: len(piece) // 8 * 8]):
                if first <= word < end:
                    if len(row) <= _ROW:
                        row.append(word)
                elif row:
                    if least <= len(row) <= _ROW:
                        yield row
                    row = []

    def _pieces_of_data(self) -> Iterator[tuple[int, bytes]]:
        """Yield the regions that may contain pointers, in pieces: writable data first, then constants."""
        for region in sorted(self.regions, key=lambda region: not region.data):
            if not region.code:
                yield from self._pieces(region, 0)

    def _limit(self, what: str, number: int, most: int) -> None:
        if number > most:
            raise _exceeds(self.pid, f"the number of {what}", str(most))

    def _pieces(self, region: Region, overlap: int) -> Iterator[tuple[int, bytes]]:
        for start in range(region.start, region.end, _PIECE):
            size = min(_PIECE + overlap, region.end - start)
            [piece] = self.read([(start, size)])
            if piece is not None:
                yield start, piece

    def read(self, places: list[tuple[int, int]]) -> list[bytes | None]:
        """Return the bytes at each ``(address, size)``; None if it is not mapped."""
        if time.thread_time() > self._deadline:
            raise _exceeds(self.pid, "reading the executable's variables", f"{_CPU_S:g} s of CPU time")
        return read_many(self.pid, places)

    def strings(self, addresses: list[int], longest: int = 96) -> list[str | None]:
        """Return the C strings at ``addresses``; None for one that is unmapped, not ASCII or too long."""
        places = []
        for address in addresses:
            region = self.at(address)
            places.append((address, min(longest, region.end - address) if region else longest))
        found: list[str | None] = []
        for raw in self.read(places):
            text, end, _ = (raw or b"").partition(b"\0")
            found.append(text.decode("ascii") if end and text.isascii() else None)
        return found


def _exceeds(pid: int, what: str, limit: str) -> NotRead:
    file = Path(f"/proc/{pid}/exe")
    with contextlib.suppress(OSError):
        file = file.readlink()
    remedy = "use the SQL collector for these metrics"
    return NotRead(f"{file} (process {pid}): {what} exceeds {limit}, not read", remedy=remedy)


def _regions(pid: int) -> list[Region]:
    """Return the executable's mappings in ascending order, and the anonymous mappings after them (.bss)."""
    regions: list[Region] = []
    try:
        inode = Path(f"/proc/{pid}/exe").stat().st_ino
        for region in _mapped(pid, str(inode).encode()):
            regions.append(region)
            if len(regions) > _REGIONS:
                raise _exceeds(pid, "the number of mappings", str(_REGIONS))
    except PermissionError as error:
        raise no_rights(pid, error.strerror or "") from error
    except (FileNotFoundError, ProcessLookupError) as error:
        raise gone(pid) from error
    if sum(region.end - region.start for region in regions) > _IMAGE:
        raise _exceeds(pid, "the mapped size", f"{_IMAGE} bytes")
    if sum(region.end - region.start for region in regions if region.data) > _DATA:
        raise _exceeds(pid, "the size of .data and .bss", f"{_DATA} bytes")
    return regions


def _mapped(pid: int, inode: bytes) -> Iterator[Region]:
    read = continues = 0
    with Path(f"/proc/{pid}/maps").open("rb") as lines:
        for line in lines:
            read += len(line)
            if read > _MAPS:
                raise _exceeds(pid, f"/proc/{pid}/maps", f"{_MAPS} bytes")
            span, rights, _, _, owner, *name = line.split(maxsplit=5)
            start, end = (int(part, 16) for part in span.split(b"-"))
            if not rights.startswith(b"r") or not (owner == inode or (owner == b"0" and start == continues)):
                continue
            if name and name[0].startswith(b"[heap]"):
                end = min(end, start + _HEAP)
            yield Region(start, end, data=b"w" in rights, code=b"x" in rights)
            continues = end
