"""Read the contents of this host's symbol packs: addresses of variables, and members of structures.

The Rust core uses a pack's names in the same way as a debug file's names (docs/symbols.md). Packs are not
trusted: the Rust core checks the owner and the checksum, and this module checks each number.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, TypeAlias, TypeVar

import msgspec
from msgspec import Meta

from innoscope import _native
from innoscope._native import Member
from innoscope.common import typed
from innoscope.common.errors import BadFile
from innoscope.target.native_errors import ONE_AT_A_TIME, failure

if TYPE_CHECKING:
    from collections.abc import Mapping

    from innoscope._native import NativeError, Pack
    from innoscope.target.model import Target

T = TypeVar("T")
#: The value of ``Target.symbols`` and ``ModuleInfo.symbols_from`` for a pack.
SOURCE: Final = "symbol-pack"
_LONGEST: Final = 1000  # maximum length of a string in characters
_U32: TypeAlias = Annotated[int, Meta(ge=0, le=(1 << 32) - 1)]
_Offsets: TypeAlias = Annotated[list[_U32], Meta(min_length=1)]
_MemberKind: TypeAlias = Literal["unsigned", "signed", "float", "pointer", "structure"]
_VariableKind: TypeAlias = Literal["unsigned", "signed", "float", "char", "other"]
#: A member in JSON: the fields of Member.
MemberFields: TypeAlias = tuple[_Offsets, _U32, _MemberKind, _U32, _U32]


class _Layout(msgspec.Struct, frozen=True):
    """A pack's layout in JSON. Unknown keys are ignored, because later versions may add some."""

    members: dict[str, MemberFields]
    missing: dict[str, str]
    variables: dict[str, tuple[Annotated[int, Meta(ge=0)], _U32, _VariableKind, str]]

    def __post_init__(self) -> None:
        described = (described for *_, described in self.variables.values())
        for value in (*self.members, *self.missing, *self.missing.values(), *self.variables, *described):
            text(value)
        if any(address >= 1 << 64 for address, *_ in self.variables.values()):
            raise ValueError("an address does not fit into 64 bits")


@dataclass(frozen=True, slots=True)
class PackLayout:
    """The contents of a pack, except the symbol names.

    ``members`` has the format that ``_native.members_in_process`` returns. ``missing`` maps each member that
    was not found to the reason.

    ``variables`` is ``{name: (ELF virtual address, bytes, kind, type in C)}``.
    """

    members: Mapping[str, Member]
    missing: Mapping[str, str]
    variables: Mapping[str, tuple[int, int, str, str]]


def layout(build_id: str | None) -> PackLayout | None:
    """Return the layout in this build's pack, or None if there is none. Raise BadFile if it is rejected."""
    if build_id is None:
        return None

    with ONE_AT_A_TIME:
        try:
            pack = _native.Pack.of_build(build_id)
        except _native.NativeError as error:
            raise refused(error) from error
        return None if pack is None else read_layout(pack)


def open_pack(path: str) -> Pack:
    """Open a pack by its path. Raise BadFile if the pack is rejected."""
    try:
        return _native.Pack(path)
    except _native.NativeError as error:
        raise refused(error) from error


def path_for(build_id: str | None) -> str | None:
    """Return the path of this build's pack, or None if there is none.

    Raise BadFile if its owner or checksum is wrong.
    """
    if build_id is None:
        return None

    try:
        return _native.find_pack(build_id)
    except _native.NativeError as error:
        raise refused(error) from error


def problem(target: Target) -> str | None:
    """Return the reason and remedy if this server's pack is unusable; None if it is usable or missing."""
    try:
        path_for(target.build_id)
    except BadFile as error:
        return error.in_one_line
    return None


def refused(error: NativeError) -> BadFile:
    """Return the error for a pack that the Rust core rejects."""
    found = failure(error)
    return BadFile(found.detail, remedy=found.remedy)


def read_layout(pack: Pack) -> PackLayout:
    """Parse and check the layout in a pack. Raise BadFile if it is malformed."""
    found = read_section(pack, pack.layout, _Layout)
    members = {path: Member(*fields) for path, fields in found.members.items()}
    return PackLayout(members, found.missing, dict(found.variables))


def read_section(pack: Pack, raw: bytes, kind: type[T]) -> T:
    """Parse and check one of the pack's JSON sections. Raise BadFile if it is malformed."""
    try:
        return typed.decode_json(raw, kind, pack.path)
    except BadFile as error:
        raise _damaged(pack) from error


def fields(member: Member) -> list[Any]:
    """Return a member as a JSON array, in the format that read_layout() reads."""
    return [member.offsets, member.size, member.kind, member.stride, member.count]


def _damaged(pack: Pack) -> BadFile:
    """Return the error for a pack with malformed JSON sections."""
    return BadFile(
        f"cannot use symbol pack {pack.path}: its descriptions are damaged",
        remedy="export it again: innoscope symbols export --help",
    )


def text(value: Any) -> str:
    """Return a JSON value if it is a short, printable string, which can safely be shown on a terminal.

    Raise ValueError otherwise.
    """
    if not isinstance(value, str) or len(value) > _LONGEST or not value.isprintable():
        raise ValueError("malformed text")
    return value
