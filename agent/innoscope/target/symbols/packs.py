"""What this host's symbol packs know of a build: where its variables lie, and the members of its structures.

The names in a pack are read by the Rust core, as those of a debug file are (docs/symbols.md). A pack is not
believed because it is there: the core checks its owner and its checksum, and each number is checked here.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from innoscope import _native
from innoscope._native import Member
from innoscope.common.errors import BadFile
from innoscope.target.native_errors import ONE_AT_A_TIME

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from innoscope._native import NativeError, Pack
    from innoscope.target.model import Target

#: A pack as the source of names, in the words of ``Target.symbols`` and ``ModuleInfo.symbols_from``.
SOURCE: Final = "symbol-pack"
VARIABLE_KINDS: Final = frozenset({"unsigned", "signed", "float", "char", "other"})
_LONGEST: Final = 1000  # characters of a text


@dataclass(frozen=True, slots=True)
class Layout:
    """The members of a pack; ``missing`` says why others are not there.

    ``variables`` is ``{name: (ELF virtual address, bytes, kind, type in C)}``.
    """

    members: Mapping[str, Member]
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
    data = read_json(pack, pack.layout)
    try:
        return Layout(
            members=dict(_checked(data["members"], member)),
            missing=dict(_checked(data["missing"], text)),
            variables=dict(_checked(data["variables"], _variable)),
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise damaged(pack) from error


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


def _checked(entries: Mapping[str, Any], check: Callable[[Any], Any]) -> Iterator[tuple[str, Any]]:
    for name, value in entries.items():
        yield text(name), check(value)


def member(raw: Any) -> Member:
    """One member out of JSON; ValueError or TypeError when it is none."""
    offsets, size, kind, stride, count = raw
    if not offsets:
        raise ValueError("no member")
    return Member(
        [_number(offset) for offset in offsets], _number(size), kind, _number(stride), _number(count)
    )


def fields(member: Member) -> list[Any]:
    """Return a member for JSON; the reverse of ``member``."""
    return [member.offsets, member.size, member.kind, member.stride, member.count]


def _variable(raw: Any) -> tuple[int, int, str, str]:
    address, size, kind, described = raw
    if kind not in VARIABLE_KINDS:
        raise ValueError("no variable")
    return _number(address, 64), _number(size), kind, text(described)


def _number(value: Any, bits: int = 32) -> int:
    if type(value) is not int or not 0 <= value < 1 << bits:
        raise ValueError("no number")
    return value


def text(value: Any) -> str:
    """A text out of JSON that can be shown on a terminal; ValueError when it is none."""
    if not isinstance(value, str) or len(value) > _LONGEST or not value.isprintable():
        raise ValueError("no text")
    return value
