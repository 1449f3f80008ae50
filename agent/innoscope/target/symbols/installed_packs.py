"""List this host's symbol packs, with their origin, the matching servers, and reasons for rejection."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from innoscope import _native
from innoscope.common.errors import BadFile, NoRights
from innoscope.target.symbols import packs

if TYPE_CHECKING:
    from collections.abc import Iterable

    from innoscope._native import Pack
    from innoscope.target.model import Target

_SUFFIX: Final = ".pack"
_TEXTS: Final = ("server", "made_by", "made_at", "made_of")


@dataclass(frozen=True, slots=True)
class PackInfo:
    """The description that a pack contains. ``server`` and ``made_…`` may be None; sizes are in bytes."""

    build_id: str
    server: str | None
    functions: int
    variables: int
    members: int  # members of structures
    settings: int  # variables with their type
    bytes: int
    unpacked_bytes: int
    made_by: str | None
    made_at: str | None
    made_of: str | None


@dataclass(frozen=True, slots=True)
class PackFile:
    """A file in the pack folder. ``fits`` lists the pids of matching servers; ``problem`` is an error."""

    path: str
    about: PackInfo | None
    fits: tuple[int, ...] = ()
    problem: str | None = None


def about(pack: Pack) -> PackInfo:
    """Return the description that the pack contains, after checking it. Raise BadFile."""
    said = packs.read_json(pack, pack.about)
    layout = packs.read_layout(pack)
    if not isinstance(said, dict):
        raise packs.damaged(pack)
    texts = {key: _text(pack, said.get(key)) for key in _TEXTS}
    return PackInfo(
        build_id=pack.build_id,
        functions=pack.functions,
        variables=pack.variables,
        members=len(layout.members),
        settings=len(layout.variables),
        bytes=pack.size,
        unpacked_bytes=pack.unpacked_size,
        **texts,
    )


def _text(pack: Pack, value: Any) -> str | None:
    if value is None:
        return None
    try:
        return packs.text(value)
    except ValueError as error:
        raise packs.damaged(pack) from error


def folder() -> Path:
    """Return the folder of this host's packs."""
    return Path(_native.pack_folder())


def entries(targets: Iterable[Target]) -> list[PackFile]:
    """Return all packs of this host, sorted by name. Raise NoRights."""
    try:
        files = sorted(path for path in folder().iterdir() if path.suffix == _SUFFIX)
    except (FileNotFoundError, NotADirectoryError):
        return []
    except PermissionError as error:
        raise NoRights(f"cannot read {folder()}: {error.strerror}", remedy="run it as root") from error
    running = [(target.build_id, target.pid) for target in targets]
    return [_entry(path, running) for path in files]


def _entry(path: Path, running: Iterable[tuple[str | None, int]]) -> PackFile:
    try:
        known = about(packs.open_pack(str(path)))
    except BadFile as error:
        return PackFile(str(path), None, problem=error.in_one_line)
    fits = tuple(pid for build_id, pid in running if build_id == known.build_id)
    right = path.with_name(known.build_id + _SUFFIX)
    if path != right:
        return PackFile(str(path), known, fits, f"its name is wrong (mv {path} {right})")
    return PackFile(str(path), known, fits)
