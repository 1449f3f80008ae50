"""Describe a server's executable: its path, whether it was replaced, and the source of its symbols."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from innoscope import _native
from innoscope.common.errors import BadFile, InnoscopeError
from innoscope.target.endpoints import strip_root
from innoscope.target.native_errors import translating
from innoscope.target.symbols import packs

if TYPE_CHECKING:
    from innoscope.target.proc import ProcFs

#: The directory in which distributions install separate debug files.
DEBUG_DIR = "/usr/lib/debug"


@dataclass(frozen=True, slots=True)
class Location:
    """The location of an executable.

    ``path`` is in the server's file system. ``deleted`` is true if the file was replaced or deleted. ``root``
    is the server's root directory as we see it.
    """

    path: str
    deleted: bool
    root: str


@dataclass(frozen=True, slots=True)
class Description:
    """The build-id and the symbol source: symtab, debug-file, symbol-pack, debugdata, dynsym or none."""

    build_id: str | None
    symbols: str


def locate(proc: ProcFs, pid: int) -> Location:
    """Locate the executable; if /proc/PID/exe is not readable, use the command line."""
    try:
        root = proc.root_of(pid)
        path, deleted = proc.exe(pid)
    except PermissionError:
        arguments = proc.cmdline(pid)
        return Location(arguments[0] if arguments else "", False, "/")
    return Location(strip_root(path, root), deleted, root)


def openable(proc: ProcFs, pid: int, where: Location) -> str:
    """Return a path that opens exactly the running file: its own path if unchanged, else /proc/PID/exe.

    The search by ``.gnu_debuglink`` needs the file's directory, which /proc/PID/exe does not reveal.
    """
    link, named = proc.path(pid, "exe"), proc.inside(pid, where.path)
    try:
        return named if Path(link).samefile(named) else link
    except OSError:
        return link


def debug_dirs(proc: ProcFs, pid: int, root: str, container: str | None) -> list[str]:
    """Return the directories to search for debug files, including those in a server's own file system."""
    own = [DEBUG_DIR]
    if root != "/" or container:
        own.append(proc.inside(pid, DEBUG_DIR))
    return own


def describe(proc: ProcFs, pid: int, where: Location) -> Description:
    """Return the executable's build-id and the symbol source that the Rust core would use."""
    path = openable(proc, pid, where)
    try:
        with translating(pid):
            info = _native.elf_info(path)
            if info.has_symtab:
                return Description(info.build_id, "symtab")
            debug = _native.find_debug_file(path, [DEBUG_DIR, proc.inside(pid, DEBUG_DIR)])
    except InnoscopeError:
        return Description(None, "none")
    if debug is not None:
        return Description(info.build_id, "debug-file")
    if _has_pack(info.build_id):
        return Description(info.build_id, packs.SOURCE)
    if info.has_debugdata:
        return Description(info.build_id, "debugdata")
    return Description(info.build_id, "dynsym" if info.has_dynsym else "none")


def _has_pack(build_id: str | None) -> bool:
    try:
        return packs.path_for(build_id) is not None
    except BadFile:
        return False
