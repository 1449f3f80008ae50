"""Locate a server's global variables: addresses from symbols, offsets from debug information.

Without debug information, a symbol pack supplies the addresses and offsets (``target.symbols.packs``).

Reading 300 MB of debug information takes one or two seconds, so the result is cached by build-id. Addresses
are not cached: they differ between processes, and reading a symbol table takes only milliseconds.
"""

from __future__ import annotations

import contextlib
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from innoscope import _native
from innoscope._native import Member
from innoscope.common.cache import cache_key
from innoscope.common.errors import BadFile
from innoscope.common.typed import decode_json, encode_json
from innoscope.memory.backoff import Backoff
from innoscope.target.native_errors import reading_files, translating
from innoscope.target.symbols import packs

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from innoscope._native import Symbol
    from innoscope.common.cache import Cache
    from innoscope.memory.backoff import Key
    from innoscope.target.model import Target

#: Lock held while a child process reads debug information, which needs up to 1.5 GiB of memory.
_CHILD: Final = threading.Lock()
#: Maximum seconds to wait for this lock. After that, the child is started anyway.
_CHILD_TIMEOUT_S: Final = 5.0
_FAILED: Final = Backoff()
_NOT_IN_PACK: Final = "not in the symbol pack: an older Innoscope made it"


@dataclass(frozen=True, slots=True)
class MemoryLayout:
    """The locations of a server's global variables and their members.

    ``symbols`` contains addresses in the process; ``symbols_from`` is their source. ``missing`` maps each
    member that was not found to the reason. ``described`` is true if there is debug information or a symbol
    pack (``from_pack``), or if the members are from the catalog (``from_catalog``). ``cached`` is true if
    the members came from the cache. ``witnesses`` lists paths that are read only for checks. ``problem`` is
    the reason why an existing pack was not used.
    """

    symbols: Mapping[str, Symbol]
    symbols_from: str
    members: Mapping[str, Member]
    missing: Mapping[str, str]
    described: bool
    cached: bool = False
    from_pack: bool = False
    from_catalog: bool = False
    witnesses: tuple[str, ...] = ()
    problem: str | None = None


class _Cached(msgspec.Struct, frozen=True, array_like=True):
    """The cached result: the members, and the reasons why others are missing."""

    members: dict[str, packs.MemberFields]
    missing: dict[str, str]


@dataclass(frozen=True, slots=True)
class Debug:
    """Locations of debug files: directories such as /usr/lib/debug, and downloaded files by build-id."""

    dirs: tuple[str, ...] = ("/usr/lib/debug",)
    files: tuple[tuple[str, str], ...] = ()


def learn(
    target: Target,
    names: Sequence[str],
    paths: Sequence[str],
    debug: Debug,
    cache: Cache,
    types: Sequence[str] = (),
) -> MemoryLayout:
    """Return the layout of a running server.

    Raise NoSuchProcess if the server has exited, NoRights if we are not allowed to read it, BadFile if one of
    its files is damaged, or NotRead if its debug information cannot be read; a later call tries again.

    ``paths`` begin with a variable, ``types`` with a type. Paths whose variable the server lacks are
    ignored. All others are looked up in the cache, then in the debug information or, without it, in a symbol
    pack.
    """
    files = dict(debug.files)
    with reading_files(target.pid):
        # The process is a key too, because the file's owner can change its timestamps at any time.
        keys = (_executable(target), (target.pid, target.start_time))
        _FAILED.check(keys)
        found = _native.globals_in_process(target.pid, list(names), list(debug.dirs), files)
        symbols, source = found.symbols, found.source
        paths = [*(path for path in paths if root(path) in symbols), *types]
        key = cache_key(_build(target), *paths)
        if (known := cache.read(key)) is not None:
            with contextlib.suppress(BadFile):  # written by another version
                stored = decode_json(known, _Cached, "the cached layout")
                known_members = {path: Member(*each) for path, each in stored.members.items()}
                return MemoryLayout(
                    symbols, source, known_members, stored.missing, described=True, cached=True
                )
    try:
        with _one_child(), translating(target.pid):
            members = _native.members_in_process(target.pid, list(paths), list(debug.dirs), files)
    except BadFile as error:
        raise _FAILED.failed(keys, error) from error
    _FAILED.succeeded(keys)
    if members is None:
        return _of_pack(target, symbols, source, paths)
    fields = {path: packs.fields(member) for path, member in members.found.items()}
    cache.write(key, encode_json((fields, members.missing)))
    return MemoryLayout(symbols, source, members.found, members.missing, described=True)


@contextlib.contextmanager
def _one_child() -> Iterator[None]:
    """Wait until no other child process is reading debug information, and prevent others from starting.

    After a timeout, continue without the lock, because a malicious file can slow down the child that reads
    it.
    """
    alone = _CHILD.acquire(timeout=_CHILD_TIMEOUT_S)
    try:
        yield
    finally:
        if alone:
            _CHILD.release()


def _of_pack(
    target: Target, symbols: Mapping[str, Symbol], source: str, paths: Sequence[str]
) -> MemoryLayout:
    """Return the layout from a symbol pack, for a server without debug information."""
    try:
        known = packs.layout(target.build_id)
    except BadFile as error:
        return MemoryLayout(symbols, source, {}, {}, described=False, problem=error.in_one_line)
    if known is None or not (known.members or known.missing):
        # There is no pack, or it was made from a file without debug information.
        return MemoryLayout(symbols, source, {}, {}, described=False)
    members = {path: known.members[path] for path in paths if path in known.members}
    missing = {path: known.missing.get(path, _NOT_IN_PACK) for path in paths if path not in members}
    return MemoryLayout(symbols, source, members, missing, described=True, from_pack=True)


def array(path: str) -> str:
    """Return the path of the array or pointer before ``[*]``, or the whole path if it has no ``[*]``."""
    return path.partition("[*]")[0]


def root(path: str) -> str:
    """Return the name of the global variable at which a member path starts."""
    return path.partition(".")[0].partition("[")[0]


def _build(target: Target) -> str:
    """Return the build-id, or a key derived from the file's metadata if there is no build-id."""
    if target.build_id:
        return target.build_id
    return "file-" + "-".join(f"{number:x}" for number in _executable(target))


def _executable(target: Target) -> Key:
    """Return the executable's device, inode, size, and modification time in ns."""
    file = Path(f"/proc/{target.pid}/exe").stat()
    return file.st_dev, file.st_ino, file.st_size, file.st_mtime_ns
