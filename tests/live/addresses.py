"""Resolve an address in a process to a file and to all symbols that contain it, without Innoscope's code."""

from __future__ import annotations

import re
import struct
import subprocess
from bisect import bisect_right
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

_PT_LOAD = 1
_SYMBOL = re.compile(r"([0-9a-f]{16}) ([0-9a-f]{16}) [tTwWiuVv] (.+)")


@dataclass(frozen=True, slots=True)
class _Mapping:
    start: int
    end: int
    add: int  # the offset from addresses in the process to addresses in the file
    name: str


class AddressSpace:
    """The executable mappings of a process."""

    def __init__(self, pid: int) -> None:
        self._mappings = []
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
            span, rights, offset, _, _, *path = line.split(maxsplit=5)
            if "x" not in rights or not path:
                continue
            start, end = (int(edge, 16) for edge in span.split("-"))
            add = -start if path[0].startswith("[") else _add(pid, start, end, int(offset, 16))
            name = path[0].removesuffix(" (deleted)").rpartition("/")[2]
            self._mappings.append(_Mapping(start, end, add, name))

    def locate(self, pc: int) -> tuple[str, int]:
        """Return the file's base name and the address within the file; ``("?", pc)`` if it is not mapped."""
        for mapping in self._mappings:
            if mapping.start <= pc < mapping.end:
                return mapping.name, pc + mapping.add
        return "?", pc


def _add(pid: int, start: int, end: int, offset: int) -> int:
    """Return the offset from process addresses to file addresses, from the mapping's program header."""
    with Path(f"/proc/{pid}/map_files/{start:x}-{end:x}").open("rb") as file:
        header = file.read(64)
        at, size, count = struct.unpack_from("<Q14xHH", header, 32)
        file.seek(at)
        table = file.read(size * count)
    for index in range(count):
        kind, flags, begin, vaddr, _, length = map(int, struct.unpack_from("<IIQQQQ", table, index * size))
        if kind == _PT_LOAD and flags & 1 and begin & ~0xFFF <= offset < begin + length:
            return offset - begin + vaddr - start
    raise AssertionError(f"no program header for {start:x}-{end:x}")


@dataclass(slots=True)
class Symbols:
    """The function symbols of some files, as nm lists them. Symbols without a size are omitted."""

    starts: list[int] = field(default_factory=list)
    rows: list[tuple[int, int, str]] = field(default_factory=list)
    longest: int = 0

    @classmethod
    def of(cls, files: Iterable[str]) -> Symbols:
        """Read ``.symtab`` and ``.dynsym`` of each file."""
        rows = set()
        for path in files:
            for option in ((), ("-D",)):
                command = ["nm", "-C", "-S", "--defined-only", *option, path]
                output = subprocess.run(command, capture_output=True, text=True, check=False).stdout
                for line in output.splitlines():
                    if match := _SYMBOL.match(line):
                        rows.add((int(match[1], 16), int(match[2], 16), plain(match[3])))
        ordered = sorted(rows)
        return cls([row[0] for row in ordered], ordered, max((row[1] for row in ordered), default=0))

    def covering(self, address: int) -> set[str]:
        """Return the names of all symbols that contain the address."""
        found = set()
        for start, size, name in reversed(self.rows[: bisect_right(self.starts, address)]):
            if start + self.longest <= address:
                break
            if address < start + size:
                found.add(name)
        return found


_CLONE = re.compile(
    r" ?\[clone [^]]*\]|(\.(isra|constprop|part|lto_priv|cold|llvm)(\.\d+)*)+$|@@?[A-Z]+[\w.]*$"
)
_COMPARES = re.compile(r"operator(<=>|<<=?|>>=?|<=?|>=?)(?!\w)")


def plain(name: str) -> str:
    """Strip parameters, template arguments, return type, clone suffix and version from a function's name."""
    name = _CLONE.sub("", name.replace("(anonymous namespace)", "{anonymous}"))
    name = name.replace("operator()", "operator{}").replace("operator->", "operator{->}")
    name = _COMPARES.sub(lambda match: f"operator{{{match[1].encode().hex()}}}", name)
    letters, depth = [], 0
    for index, letter in enumerate(name):
        if letter in "<(":
            if letter == "(" and not depth and index:
                break
            depth += 1
        elif letter in ">)":
            depth -= 1
        elif not depth:
            letters.append(letter)
    head, operator, rest = "".join(letters).strip().partition("operator")
    return head.rpartition(" ")[2] + operator + rest
