"""The packs of this host: what each is of, which running servers it fits, and why one is refused."""

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
class About:
    """What a pack says of itself. ``server``, ``made_…`` are None where it does not; sizes are in bytes."""

    build_id: str
    server: str | None
    functions: int
    variables: int
    members: int  # of structures
    settings: int  # variables with their type
    bytes: int
    unpacked_bytes: int
    made_by: str | None
    made_at: str | None
    made_of: str | None


@dataclass(frozen=True, slots=True)
class Entry:
    """One file of the folder. ``fits``: pids of servers of its build; ``problem``: why it is not used."""

    path: str
    about: About | None
    fits: tuple[int, ...] = ()
    problem: str | None = None


def about(pack: Pack) -> About:
    """All that a pack says, checked. Raises BadFile."""
    said = packs.read_json(pack, pack.about)
    layout = packs.read_layout(pack)
    if not isinstance(said, dict):
        raise packs.damaged(pack)
    texts = {key: _text(pack, said.get(key)) for key in _TEXTS}
    return About(
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
    """Where the packs of this host are."""
    return Path(_native.pack_folder())


def entries(targets: Iterable[Target]) -> list[Entry]:
    """All packs of this host by name; none where there is no folder. Raises NoRights."""
    try:
        files = sorted(path for path in folder().iterdir() if path.suffix == _SUFFIX)
    except (FileNotFoundError, NotADirectoryError):
        return []
    except PermissionError as error:
        raise NoRights(f"cannot read {folder()}: {error.strerror}", remedy="run it as root") from error
    running = [(target.build_id, target.pid) for target in targets]
    return [_entry(path, running) for path in files]


def _entry(path: Path, running: Iterable[tuple[str | None, int]]) -> Entry:
    try:
        known = about(packs.open_pack(str(path)))
    except BadFile as error:
        return Entry(str(path), None, problem=packs.in_words(error))
    fits = tuple(pid for build_id, pid in running if build_id == known.build_id)
    right = path.with_name(known.build_id + _SUFFIX)
    if path != right:
        return Entry(str(path), known, fits, f"is not found by this name (mv {path} {right})")
    return Entry(str(path), known, fits)
