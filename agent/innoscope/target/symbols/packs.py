"""What this host's symbol packs know of a build: where its variables lie, and the members of its structures.

The names in a pack are read by the Rust core, as those of a debug file are (docs/symbols.md). A pack is not
believed because it is there: the core checks its owner and its checksum, and each number is checked here.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, TypeAlias

import msgspec
from msgspec import Meta

from innoscope import _native
from innoscope.common import typed
from innoscope.common.errors import BadFile
from innoscope.target.native_errors import ONE_AT_A_TIME

if TYPE_CHECKING:
    from collections.abc import Mapping

    from innoscope._native import NativeError, Pack, RawMember
    from innoscope.target.model import Target

#: A pack as the source of names, in the words of ``Target.symbols`` and ``ModuleInfo.symbols_from``.
SOURCE: Final = "symbol-pack"
_LONGEST: Final = 1000  # characters of a text
_U32: TypeAlias = Annotated[int, Meta(ge=0, le=(1 << 32) - 1)]
_Offsets: TypeAlias = Annotated[list[_U32], Meta(min_length=1)]
_MemberKind: TypeAlias = Literal["unsigned", "signed", "float", "pointer", "structure"]
_VariableKind: TypeAlias = Literal["unsigned", "signed", "float", "char", "other"]


class _Layout(msgspec.Struct, frozen=True):
    """A pack's layout as JSON: later versions may add keys."""

    members: dict[str, tuple[_Offsets, _U32, _MemberKind, _U32, _U32]]
    missing: dict[str, str]
    variables: dict[str, tuple[Annotated[int, Meta(ge=0)], _U32, _VariableKind, str]]

    def __post_init__(self) -> None:
        described = (described for *_, described in self.variables.values())
        for value in (*self.members, *self.missing, *self.missing.values(), *self.variables, *described):
            text(value)
        if any(address >= 1 << 64 for address, *_ in self.variables.values()):
            raise ValueError("an address does not fit into 64 bits")


@dataclass(frozen=True, slots=True)
class Layout:
    """``members`` is as ``_native.members_in_process`` has it, ``missing`` says why others are not there.

    ``variables`` is ``{name: (ELF virtual address, bytes, kind, type in C)}``.
    """

    members: Mapping[str, RawMember]
    missing: Mapping[str, str]
    variables: Mapping[str, tuple[int, int, str, str]]


def layout(build_id: str | None) -> Layout | None:
    """What the pack of this build knows; None where this host has none. Raises BadFile if it is refused."""
    if build_id is None:
        return None

    with ONE_AT_A_TIME:
        try:
            pack = _native.Pack.of_build(build_id)
        except _native.NativeError as error:
            raise refused(error) from error
        return None if pack is None else read_layout(pack)


def open_pack(path: str) -> Pack:
    """A pack by its path. Raises BadFile."""
    try:
        return _native.Pack(path)
    except _native.NativeError as error:
        raise refused(error) from error


def path_for(build_id: str | None) -> str | None:
    """The pack of this build whose owner and checksum are right; None without one. Raises BadFile."""
    if build_id is None:
        return None

    try:
        return _native.find_pack(build_id)
    except _native.NativeError as error:
        raise refused(error) from error


def problem(target: Target) -> str | None:
    """Why the pack that this host has of a server cannot be used, with the remedy; None where all is well."""
    try:
        path_for(target.build_id)
    except BadFile as error:
        return in_words(error)
    return None


def in_words(error: BadFile) -> str:
    """What was refused and the remedy, in one line."""
    return f"{error.what} ({error.remedy})" if error.remedy else error.what


def refused(error: NativeError) -> BadFile:
    """The error for a pack that the core refuses."""
    what, remedy = (*error.args, str(error), None)[1:3]
    return BadFile(str(what), remedy=remedy)


def read_layout(pack: Pack) -> Layout:
    """The numbers of a pack, each checked. Raises BadFile."""
    try:
        found = typed.decode_json(pack.layout, _Layout, pack.path)
    except BadFile as error:
        raise damaged(pack) from error
    return Layout(dict(found.members), found.missing, dict(found.variables))


def read_json(pack: Pack, raw: bytes) -> Any:
    """One of its descriptions. Raises BadFile."""
    try:
        return json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise damaged(pack) from error


def damaged(pack: Pack) -> BadFile:
    """The error for a pack whose descriptions are none."""
    return BadFile(
        f"symbol pack {pack.path}: its descriptions are damaged",
        remedy="export it anew: innoscope symbols export --help",
    )


def text(value: Any) -> str:
    """A text out of JSON that can be shown on a terminal; ValueError when it is none."""
    if not isinstance(value, str) or len(value) > _LONGEST or not value.isprintable():
        raise ValueError("no text")
    return value
