"""List this host's symbol packs, with their origin, the matching servers, and reasons for rejection."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec
from msgspec.structs import asdict

from innoscope import _native
from innoscope.common.errors import BadFile, NoRights
from innoscope.target.symbols import packs

if TYPE_CHECKING:
    from collections.abc import Iterable

    from innoscope._native import Pack
    from innoscope.target.model import Target

_SUFFIX: Final = ".pack"


class _About(msgspec.Struct, frozen=True):
    """A pack's description in JSON. Unknown keys are ignored, because later versions may add some."""

    server: str | None = None
    made_by: str | None = None
    made_at: str | None = None
    made_of: str | None = None

    def __post_init__(self) -> None:
        for value in asdict(self).values():
            if value is not None:
                packs.text(value)


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
    """A file in the pack directory, the pids of matching servers (``fits``), and its defect (``problem``)."""

    path: str
    about: PackInfo | None
    fits: tuple[int, ...] = ()
    problem: str | None = None


def about(pack: Pack) -> PackInfo:
    """Return the description that the pack contains, after checking it. Raise BadFile if it is malformed."""
    said = packs.read_section(pack, pack.about, _About)
    layout = packs.read_layout(pack)
    return PackInfo(
        build_id=pack.build_id,
        functions=pack.functions,
        variables=pack.variables,
        members=len(layout.members),
        settings=len(layout.variables),
        bytes=pack.size,
        unpacked_bytes=pack.unpacked_size,
        **asdict(said),
    )


def folder() -> Path:
    """Return the directory of this host's packs."""
    return Path(_native.pack_folder())


def entries(targets: Iterable[Target]) -> list[PackFile]:
    """Return all packs installed on this host, sorted by name.

    Raise NoRights if we are not allowed to read their directory.
    """
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
