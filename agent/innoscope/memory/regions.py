"""The parts of a server's own file that lie in its memory: names, tables, variables."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from innoscope.memory.numbers import read_many
from innoscope.target.native_errors import gone, no_rights

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Bytes read at once, so that a server of 100 MB costs us 4.
_PIECE: Final = 4 << 20


@dataclass(frozen=True, slots=True)
class Region:
    """One mapping. ``data`` is what may be written to, ``.bss`` (which follows it) included."""

    start: int
    end: int
    data: bool
    code: bool


class Image:
    """The executable as it is mapped into the process, relocated by the dynamic linker."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.regions = list(_regions(pid))
        self._starts = [region.start for region in self.regions]

    def at(self, address: int) -> Region | None:
        """The region that an address is in."""
        index = bisect_right(self._starts, address) - 1
        return self.regions[index] if index >= 0 and address < self.regions[index].end else None

    def is_data(self, address: int) -> bool:
        """Whether a variable may be there."""
        region = self.at(address)
        return region is not None and region.data

    def find(self, needle: bytes, *, aligned: bool) -> Iterator[int]:
        """The addresses at which these bytes are; ``aligned``: pointers, which code has none of."""
        for region in self.regions:
            if aligned and region.code:
                continue
            for start, piece in self._pieces(region, len(needle) - 1):
                at = piece.find(needle)
                while at >= 0:
                    if not aligned or (start + at) % 8 == 0:
                        yield start + at
                    at = piece.find(needle, at + 1)

    def pointers(self, least: int) -> Iterator[list[int]]:
        """Rows of at least so many pointers to data, one after the other."""
        data = [region for region in self.regions if region.data]
        if not data:
            return
        first, end = data[0].start, data[-1].end
        for region in self.regions:
            if region.code:
                continue
            row: list[int] = []
            for _, piece in self._pieces(region, 0):
                for word in array("Q", piece[: len(piece) // 8 * 8]):
                    if first <= word < end:
                        row.append(word)
                        continue
                    if len(row) >= least:
                        yield row
                    row = []

    def _pieces(self, region: Region, overlap: int) -> Iterator[tuple[int, bytes]]:
        for start in range(region.start, region.end, _PIECE):
            size = min(_PIECE + overlap, region.end - start)
            [piece] = self.read([(start, size)])
            if piece is not None:
                yield start, piece

    def read(self, places: list[tuple[int, int]]) -> list[bytes | None]:
        """The bytes of each ``(address, size)``; None where it is not mapped."""
        return read_many(self.pid, places)

    def strings(self, addresses: list[int], longest: int = 96) -> list[str | None]:
        """The C strings at these addresses; None for what is no text or longer."""
        places = []
        for address in addresses:
            region = self.at(address)
            places.append((address, min(longest, region.end - address) if region else longest))
        found: list[str | None] = []
        for raw in self.read(places):
            text, end, _ = (raw or b"").partition(b"\0")
            found.append(text.decode("ascii") if end and text.isascii() else None)
        return found


def _regions(pid: int) -> Iterator[Region]:
    """The mappings of the executable in ascending order, and the anonymous ones that continue it (.bss)."""
    try:
        inode = str(Path(f"/proc/{pid}/exe").stat().st_ino)
        lines = Path(f"/proc/{pid}/maps").read_text(errors="replace").splitlines()
    except PermissionError as error:
        raise no_rights(pid, error.strerror or "") from error
    except (FileNotFoundError, ProcessLookupError) as error:
        raise gone(pid) from error
    continues = 0
    for line in lines:
        span, rights, _, _, owner, *_ = line.split(maxsplit=5)
        start, end = (int(part, 16) for part in span.split("-"))
        if rights[0] != "r" or not (owner == inode or (owner == "0" and start == continues)):
            continue
        yield Region(start, end, data="w" in rights, code="x" in rights)
        continues = end
