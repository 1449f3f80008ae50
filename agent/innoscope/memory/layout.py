"""Where one server's global numbers lie: addresses from its symbols, offsets from its debug information.

Where there is none, a symbol pack tells both (``target.packs``).

Reading 300 MB of debug information takes a second or two, so what was found is kept in a file per build-id.
Addresses are not kept: a symbol table is read in milliseconds, and they differ from process to process.
"""

from __future__ import annotations

import contextlib
import json
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from innoscope.errors import BadFile
from innoscope.memory.backoff import Backoff
from innoscope.records import record
from innoscope.target import packs
from innoscope.target.native_errors import translating
from innoscope.target.reading import ONE_AT_A_TIME

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from innoscope._native import RawMember
    from innoscope.memory.backoff import Key
    from innoscope.target.model import Target

#: Of the file; another number is a file of another Innoscope and is made anew.
_FORMAT: Final = 1
#: A child takes up to 1.5 GiB for a moment, so one reads at a time if it can be had within these seconds.
_CHILD: Final = threading.Lock()
_PATIENCE_S: Final = 5.0
_FAILED: Final = Backoff()
_NOT_ASKED: Final = "the symbol pack does not say: the Innoscope that made it did not ask for it"


@record
class Member:
    """Where a member is, seen from its global variable.

    ``offsets[0]`` is added to the variable's address, each further one to the pointer that is read there.
    ``count`` elements lie ``stride`` bytes apart and are summed; 0 means that the debug information does not
    say how many.
    """

    offsets: tuple[int, ...]
    size: int
    kind: str
    stride: int = 0
    count: int = 1


@record
class Layout:
    """``symbols`` is ``{name: (address in the process, size)}``, from ``symbols_from``.

    ``missing`` says of members why they are not there. ``described`` is whether there is debug information or
    a symbol pack (``from_pack``), ``cached`` whether its contents came from the file. ``problem`` is why a
    pack that is there was not taken, in words.
    """

    symbols: Mapping[str, tuple[int, int]]
    symbols_from: str
    members: Mapping[str, Member]
    missing: Mapping[str, str]
    described: bool
    cached: bool = False
    from_pack: bool = False
    problem: str | None = None


@record
class Debug:
    """Where debug files may be: folders like /usr/lib/debug, and files fetched before, by build-id."""

    dirs: tuple[str, ...] = ("/usr/lib/debug",)
    files: tuple[tuple[str, str], ...] = ()


def learn(
    target: Target,
    names: Sequence[str],
    paths: Sequence[str],
    debug: Debug,
    cache: Path | None,
    types: Sequence[str] = (),
) -> Layout:
    """The layout of a running server. Raises NoSuchProcess, NoRights or BadFile.

    A file whose debug information failed is not read again for a while: NotRead.

    ``paths`` of variables that it has, and ``types``, paths that begin with a type, are asked of the debug
    information, unless all of them are in the cache (a folder).
    """
    files = dict(debug.files)
    with translating(target.pid):
        from innoscope import _native

        # The process too: its owner may touch the file at any time.
        keys = (_executable(target), (target.pid, target.start_time))
        _FAILED.check(keys)
        with ONE_AT_A_TIME:
            symbols, source = _native.globals_in_process(target.pid, list(names), list(debug.dirs), files)
        paths = [*(path for path in paths if root(path) in symbols), *types]
        file = cache / f"{_build(target)}.json" if cache is not None else None
        known = _read(file, paths)
        if known is not None:
            return Layout(symbols, source, *known, described=True, cached=True)
    try:
        with _turn(), translating(target.pid):
            found = _native.members_in_process(target.pid, list(paths), list(debug.dirs), files)
    except BadFile as error:
        raise _FAILED.failed(keys, error) from error
    _FAILED.succeeded(keys)
    if found is None:
        return _of_pack(target, symbols, source, paths)
    members = {path: _as_member(raw) for path, raw in found[0].items()}
    if file is not None:
        _write(file, members, found[1])
    return Layout(symbols, source, members, found[1], described=True)


@contextlib.contextmanager
def _turn() -> Iterator[None]:
    """Wait until no other child reads debug information, but not long: its file may be hostile."""
    alone = _CHILD.acquire(timeout=_PATIENCE_S)
    try:
        yield
    finally:
        if alone:
            _CHILD.release()


def _of_pack(
    target: Target, symbols: Mapping[str, tuple[int, int]], source: str, paths: Sequence[str]
) -> Layout:
    """The layout of a server without debug information."""
    try:
        with ONE_AT_A_TIME:
            known = packs.layout(target.build_id)
    except BadFile as error:
        return Layout(symbols, source, {}, {}, described=False, problem=packs.in_words(error))
    if known is None:
        return Layout(symbols, source, {}, {}, described=False)
    members = {path: _as_member(known.members[path]) for path in paths if path in known.members}
    missing = {path: known.missing.get(path, _NOT_ASKED) for path in paths if path not in members}
    return Layout(symbols, source, members, missing, described=True, from_pack=True)


def root(path: str) -> str:
    """The global variable that a path of members begins with."""
    return path.partition(".")[0].partition("[")[0]


def _build(target: Target) -> str:
    """The build-id; old compilers give none, then what tells this file from all others."""
    if target.build_id:
        return target.build_id
    return "file-" + "-".join(f"{number:x}" for number in _executable(target))


def _executable(target: Target) -> Key:
    """Device, inode, size, and time of the last change in ns."""
    file = Path(f"/proc/{target.pid}/exe").stat()
    return file.st_dev, file.st_ino, file.st_size, file.st_mtime_ns


def _read(file: Path | None, paths: Sequence[str]) -> tuple[dict[str, Member], dict[str, str]] | None:
    """What the file knows, if it is whole and has an answer for every path."""
    if file is None:
        return None
    try:
        data = json.loads(file.read_bytes())
        if data["format"] != _FORMAT:
            return None
        members = {path: _member(raw) for path, raw in data["members"].items()}
        missing = {str(path): str(reason) for path, reason in data["missing"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return (members, missing) if set(paths) <= members.keys() | missing.keys() else None


def _member(raw: Any) -> Member:
    """One member out of the file; ValueError or TypeError when it is none."""
    return _as_member(packs.member(raw))


def _as_member(raw: RawMember) -> Member:
    offsets, size, kind, stride, count = raw
    return Member(tuple(offsets), size, kind, stride, count)


def _write(file: Path, members: Mapping[str, Member], missing: Mapping[str, str]) -> None:
    """Whole or not at all; without a writable folder the next start takes a second longer."""
    import tempfile

    raw = {path: [list(m.offsets), m.size, m.kind, m.stride, m.count] for path, m in members.items()}
    text = json.dumps({"format": _FORMAT, "members": raw, "missing": dict(missing)}, indent=1)
    with contextlib.suppress(OSError):
        file.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=file.parent, prefix=".new-", delete=False) as new:
            new.write(text)
        Path(new.name).replace(file)
