"""Find the file to make a symbol pack from, and the server that the file belongs to."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from innoscope import _native
from innoscope.common.errors import BadFile
from innoscope.target import version
from innoscope.target.discover import find_all
from innoscope.target.executable import DEBUG_DIR, Location, openable
from innoscope.target.native_errors import translating
from innoscope.target.proc import ProcFs
from innoscope.target.symbols import debuginfod
from innoscope.target.symbols.advice import remedy

if TYPE_CHECKING:
    from collections.abc import Sequence

    from innoscope.target.model import Target
    from innoscope.target.symbols.debuginfod import DownloadProgress


@dataclass(frozen=True, slots=True)
class PackSource:
    """The file with symbols, its name for display, and its server (None if unknown)."""

    file: Path
    name: str
    server: str | None


def of_server(
    target: Target, debug_dirs: Sequence[str] = (), progress: DownloadProgress | None = None
) -> PackSource:
    """Return the source for a pack of a running server.

    ``debug_dirs`` are searched before /usr/lib/debug. debuginfod is queried only if DEBUGINFOD_URLS is set.
    Raise BadFile if there is no suitable file (its remedy shows how to get one), NoSuchProcess if the server
    has exited, or NoRights if we are not allowed to read it.
    """
    file = _best(target, debug_dirs, progress)
    return PackSource(file, Path(target.executable).name, _named(target))


def of_file(file: Path) -> PackSource:
    """Return the source for a pack of a file.

    The server's version is taken from a running server with the same build-id, or else read from the file.
    Raise BadFile if the file cannot be read or is not an ELF file.
    """
    return PackSource(file, file.name, _server_of(file))


def _best(target: Target, debug_dirs: Sequence[str], progress: DownloadProgress | None) -> Path:
    """Return the file with the most symbols: the executable, its debug file, or the file from debuginfod."""
    proc = ProcFs()
    own = proc.path(target.pid, "exe")
    with translating(target.pid):
        info = _native.elf_info(own)
        if info.has_symtab and info.has_debug_info:
            return Path(own)
        where = Location(target.executable, target.deleted, target.root)
        dirs = (*debug_dirs, DEBUG_DIR, target.inside(DEBUG_DIR))
        found = _native.find_debug_file(openable(proc, target.pid, where), dirs)
        if found is not None and _native.elf_info(found).has_symtab:
            return Path(found)
    fetched = _fetched(target, progress)
    if fetched is not None:
        return fetched
    if info.has_symtab:
        return Path(own)
    raise BadFile(
        f"no symbols: {target.executable} is stripped, and its debug file was not found "
        f"(build-id {target.build_id})",
        remedy=f"{remedy(target)}; or name the file: --file FILE",
    )


def _fetched(target: Target, progress: DownloadProgress | None) -> Path | None:
    settings = debuginfod.DebuginfodSettings.of(os.environ)
    if not settings.urls or target.build_id is None:
        return None
    try:
        return debuginfod.find(target.build_id, settings, Path(target.executable).name, progress)
    except (OSError, ValueError) as error:
        raise BadFile(
            f"debuginfod: {error}", remedy="unset DEBUGINFOD_URLS; or name the file: --file FILE"
        ) from error


def _server_of(file: Path) -> str | None:
    """Return the flavour and version, such as ``mariadb 11.4.5-MariaDB``; None if unknown.

    Raise BadFile if the file cannot be read or is not an ELF file.
    """
    with translating(os.getpid()):
        build_id = _native.elf_info(str(file)).build_id
    for target in find_all():
        if target.build_id == build_id and target.version:
            return _named(target)
    try:
        with file.open("rb") as opened:
            text = version.search(version.pieces(opened))
    except OSError as error:
        raise BadFile(f"cannot read {file}: {error.strerror}", remedy=f"ls -l {file}") from error
    return None if text is None else f"{version.flavour_of(text, file.name)} {text}"


def _named(target: Target) -> str:
    return f"{target.flavour} {target.version_text}"
