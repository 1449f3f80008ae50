"""Detect the flavour and version of a server without SQL.

Detection also works while a server starts, hangs or refuses connections. The version is in its memory, in the
global variable ``server_version`` (a char array in MySQL and MariaDB), and in the read-only data of its
executable.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, BinaryIO

from innoscope import _native
from innoscope.common import slowness
from innoscope.common.errors import InnoscopeError
from innoscope.target import foreign
from innoscope.target.native_errors import translating
from innoscope.target.proc import ProcFs

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_SYMBOL = "server_version"
_SYMBOL_SIZE = 60  # SERVER_VERSION_LENGTH in include/mysql_com.h, unchanged from 4.1 to 9.7
_SANE = re.compile(r"(\d{1,2})\.(\d{1,2})\.(\d{1,3})(?![\d.])[\w.+~:-]*$")
_WIRE_PREFIX = "5.5.5-"  # MariaDB 10 sends this prefix, so that old replicas accept the version
_NUMBER = rb"\d{1,2}\.\d{1,2}\.\d{1,3}"
_BINARY_LIMIT = 128 << 20  # maximum bytes to search; allocated sections precede debug information
_BINARY_S = 5.0  # maximum seconds for the search, which takes 0.1 s on an idle host
_HITS = 1_000  # maximum number of occurrences of a literal to test per piece; a server has only a few
_PIECE = 1 << 20  # bytes read at a time, because a daemon must not hold a whole executable in memory
_BEFORE, _AFTER = 16, 96  # maximum bytes of the whole string before and after the literal

#: (literal that is fast to find, pattern of the whole string) to search for in an executable, best first.
_MARKS: tuple[tuple[bytes, re.Pattern[bytes]], ...] = (
    (b"-MariaDB", re.compile(rb"\0(" + _NUMBER + rb"-MariaDB[\w.+~:-]*)\0")),
    (b"\0MySQL ", re.compile(rb"\0MySQL (" + _NUMBER + rb")\0")),  # the creator in the redo log, since 5.7
    (b"mysqld-", re.compile(rb"\bmysqld-(" + _NUMBER + rb"[\w.+~-]*)\0")),
    (b"mysql-", re.compile(rb"/mysql-(?:\w+-)*(" + _NUMBER + rb")(?:-[\w.]+)?/")),
)


@dataclass(frozen=True, slots=True)
class Version:
    """A server's version. If it is unknown, ``number`` is () and ``source`` is "unknown"."""

    flavour: str
    number: tuple[int, ...]
    text: str
    source: str


def parse(text: str) -> tuple[int, ...]:
    """Parse ``"10.11.19-MariaDB-log"`` → (10, 11, 19); return () if the text is not a server version."""
    match = _SANE.match(text.removeprefix(_WIRE_PREFIX) if "MariaDB" in text else text)
    return tuple(int(part) for part in match.groups()) if match else ()


def flavour_of(text: str, executable: str) -> str:
    """Return ``mariadb`` or ``mysql``, by the version string, else by the name of the executable."""
    name = PurePosixPath(executable).name
    return "mariadb" if "mariadb" in text.lower() or name.startswith("mariadb") else "mysql"


def detect(proc: ProcFs, pid: int, executable: str) -> Version:
    """Return the version of a running server, from its memory, else from its executable. Never raise."""
    for source, read in (("memory", from_memory), ("binary", from_binary)):
        text = read(proc, pid)
        if text is not None:
            return Version(flavour_of(text, executable), parse(text), text, source)
    return Version(flavour_of("", executable), (), "", "unknown")


def from_memory(proc: ProcFs, pid: int) -> str | None:
    """Return the variable ``server_version`` of the process; None if unreadable or malformed."""
    if proc != ProcFs():  # the Rust core reads the real /proc
        return None
    try:
        with translating(pid):
            found = _native.symbol_in_process(pid, [_SYMBOL])
            if _SYMBOL not in found:
                return None
            symbol = found[_SYMBOL]
            raw = _native.read_memory(pid, symbol.address, min(symbol.size or _SYMBOL_SIZE, _SYMBOL_SIZE))
    except InnoscopeError:
        return None
    text = raw.split(b"\0", 1)[0].decode("ascii", errors="replace")
    return text if parse(text) else None


def from_binary(proc: ProcFs, pid: int) -> str | None:
    """Return the version compiled into the executable (/proc/PID/exe, even if it was deleted), or None."""
    try:
        with foreign.open_binary(proc.path(pid, "exe")) as file:
            return search(pieces(file))
    except OSError:
        return None


def search(pieces: Iterable[bytes]) -> str | None:
    """Search an executable's bytes for the best of ``_MARKS``. Return the server's version, or None."""
    best, marks = None, _MARKS
    for piece in pieces:
        for rank, mark in enumerate(marks):
            if text := _search(piece, *mark):
                best, marks = text, marks[:rank]
                break
        if not marks:
            break
    return best


def _search(piece: bytes, literal: bytes, whole: re.Pattern[bytes]) -> str | None:
    position = piece.find(literal)
    for _ in range(_HITS):
        if position < 0:
            return None
        match = whole.search(piece[max(0, position - _BEFORE) : position + _AFTER])
        if match and parse(text := match.group(1).decode("ascii")):
            return text
        position = piece.find(literal, position + 1)
    return None


def pieces(file: BinaryIO, size: int = _PIECE) -> Iterator[bytes]:
    """Yield the file's bytes, within the limits ``_BINARY_LIMIT`` and ``_BINARY_S``.

    Pieces overlap, so that a string at a boundary is completely in one of them.
    """
    piece = b""
    until = time.monotonic() + slowness.scaled(_BINARY_S)
    for _ in range(0, _BINARY_LIMIT, size):
        if time.monotonic() > until:
            return
        read = file.read(size)
        if not read:
            return
        piece = piece[-(_BEFORE + _AFTER) :] + read
        yield piece
