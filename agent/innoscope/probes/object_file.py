"""What the compiler makes of a C text: code and the maps it uses, as bytes that can be kept."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

import msgspec

if TYPE_CHECKING:
    from collections.abc import Mapping

#: A hundred programs take 200 KB.
_MOST_BYTES: Final = 32 << 20


@dataclass(frozen=True, slots=True)
class Shape:
    """A map as /proc/self/fdinfo tells it: ``kind`` is of enum bpf_map_type, sizes are in bytes."""

    name: str
    kind: int
    key_bytes: int
    value_bytes: int
    entries: int
    flags: int


class _File(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The bytes: compressed JSON, programs in base64. Another format is of another version of Innoscope."""

    format: Literal[1]
    programs: dict[str, bytes]
    maps: tuple[Shape, ...]


@dataclass(frozen=True, slots=True)
class Compiled:
    """``programs`` has struct bpf_insn after struct bpf_insn; a map is an index in ``maps`` there."""

    programs: Mapping[str, bytes]
    maps: tuple[Shape, ...]

    def pack(self) -> bytes:
        """As bytes for ``unpack``."""
        file = _File(format=1, programs=dict(self.programs), maps=self.maps)
        return zlib.compress(msgspec.json.encode(file))

    @classmethod
    def unpack(cls, data: bytes) -> Compiled:
        """Raises ValueError for what ``pack`` of this version did not make."""
        try:
            text = zlib.decompressobj().decompress(data, _MOST_BYTES)
            file = msgspec.json.decode(text, type=_File)
            return cls(file.programs, file.maps)
        except (zlib.error, msgspec.MsgspecError, RecursionError) as error:
            raise ValueError(str(error)) from error
