"""Make small ELF files with unwind information from the real servers, as seeds for the fuzzer."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from elftools.elf.elffile import ELFFile

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_HEADER: Final = struct.Struct("<16sHHIQQQIHHHHHH")
_SEGMENT: Final = struct.Struct("<IIQQQQQQ")
_SECTION: Final = struct.Struct("<IIQQQQIIQQ")
_MAGIC: Final = b"\x7fELF\x02\x01\x01" + bytes(9)
_EXEC, _X86_64, _LOAD, _READ_EXECUTE = 2, 62, 1, 5
_PROGBITS, _STRTAB, _NOTE = 1, 3, 7
_ALLOC = 2
#: Maximum size of the unwind information in one seed, in bytes.
_FRAMES: Final = 6 << 10
#: Number of positions in a file from which parts are taken.
_PARTS: Final = 4


@dataclass(frozen=True)
class Part:
    """One section of the new file."""

    name: str
    kind: int
    data: bytes
    flags: int = 0
    address: int = 0


def build(parts: list[Part], code: range) -> bytes:
    """Build an ELF file from ``parts``. Its only segment covers ``code`` and contains no bytes."""
    names = bytes(1) + b"".join(part.name.encode() + b"\0" for part in parts) + b".shstrtab\0"
    everything = [*parts, Part(".shstrtab", _STRTAB, names)]
    body = bytearray(_HEADER.size + _SEGMENT.size)
    table = bytearray(_SECTION.size)
    for part in everything:
        body += bytes(-len(body) % 8)
        place = names.index(part.name.encode() + b"\0")
        table += _SECTION.pack(
            place, part.kind, part.flags, part.address, len(body), len(part.data), 0, 0, 8, 0
        )
        body += part.data
    body += bytes(-len(body) % 8)
    header = _HEADER.pack(
        _MAGIC, _EXEC, _X86_64, 1, code.start, _HEADER.size, len(body), 0,
        _HEADER.size, _SEGMENT.size, 1, _SECTION.size, len(everything) + 1, len(everything),
    )  # fmt: skip
    segment = _SEGMENT.pack(_LOAD, _READ_EXECUTE, 0, code.start, code.start, len(body), len(code), 4096)
    body[: len(header)] = header
    body[len(header) : len(header) + len(segment)] = segment
    return bytes(body + table)


def of_file(path: Path) -> Iterator[bytes]:
    """Yield seeds from one ELF file, each with unwind information from one position and the file's notes."""
    with path.open("rb") as file:
        elf = ELFFile(file)
        text = elf.get_section_by_name(".text")
        if text is None:
            return
        code = range(text["sh_addr"], text["sh_addr"] + text["sh_size"])
        notes = [
            Part(section.name, _NOTE, section.data())
            for section in elf.iter_sections()
            if section["sh_type"] == "SHT_NOTE"
        ][:2]
        for section in elf.iter_sections():
            if section.name == ".eh_frame" and section["sh_size"]:
                for part in _frames(section.data(), section["sh_addr"]):
                    yield build([part, *notes], code)


def _frames(data: bytes, address: int) -> Iterator[Part]:
    """Yield small .eh_frame sections, each with a CIE and the FDEs from a different part of ``data``."""
    entries = list(_entries(data))
    common = [(start, end) for start, end in entries if data[start + 4 : start + 8] == bytes(4)]
    for number in range(_PARTS):
        first = len(entries) * number // _PARTS
        taken, used = [], 0
        for start, end in entries[first:]:
            if used + end - start > _FRAMES:
                break
            taken.append((start, end))
            used += end - start
        if not taken or not common:
            continue
        begin = taken[0][0]
        owner = max((one for one in common if one[0] <= begin), default=common[0])
        head = data[owner[0] : owner[1]]
        piece = bytearray()
        for start, end in taken:
            entry = bytearray(data[start:end])
            if entry[4:8] != bytes(4):  # the distance to the CIE, which is the first entry of the new section
                entry[4:8] = struct.pack("<I", len(head) + len(piece) + 4)
            piece += entry
        content = head + bytes(piece) + bytes(4)
        yield Part(".eh_frame", _PROGBITS, content, _ALLOC, address + begin - len(head))


def _entries(data: bytes) -> Iterator[tuple[int, int]]:
    at = 0
    while at + 4 <= len(data):
        (length,) = struct.unpack_from("<I", data, at)
        if not 4 < length < len(data) - at:
            return
        yield at, at + 4 + length
        at += 4 + length
