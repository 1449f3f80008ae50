"""Define the format of requests to bcc_worker and of its replies: compiled BPF code and its maps."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from innoscope.common.errors import BadFile
from innoscope.common.typed import Entry, decode_json, encode_json

if TYPE_CHECKING:
    from collections.abc import Mapping

#: Maximum uncompressed size in bytes. A hundred programs take 200 KB.
_MAX_BYTES: Final = 32 << 20


@dataclass(frozen=True, slots=True)
class MapShape:
    """A map as in /proc/self/fdinfo. ``kind`` is a value of enum bpf_map_type; sizes are in bytes."""

    name: str
    kind: int
    key_bytes: int
    value_bytes: int
    entries: int
    flags: int


class CompileRequest(Entry, frozen=True):
    """C code, and the names of the programs and maps to return from it."""

    text: str
    programs: list[str]
    maps: list[str]


class CompileFailure(Entry, frozen=True):
    """The reason why a request failed. ``kind`` is ``missing`` (no bcc), ``rights`` or ``failed``."""

    error: str
    kind: str


class _File(Entry, frozen=True):
    """The serialized form. A file with another ``format`` was written by another version of Innoscope."""

    format: Literal[1]
    programs: dict[str, bytes]
    maps: tuple[MapShape, ...]


@dataclass(frozen=True, slots=True)
class Compiled:
    """Compiled programs: arrays of struct bpf_insn, which refer to a map by its index in ``maps``."""

    programs: Mapping[str, bytes]
    maps: tuple[MapShape, ...]

    def pack(self) -> bytes:
        """Return the serialized form, for ``unpack``."""
        file = _File(format=1, programs=dict(self.programs), maps=self.maps)
        return zlib.compress(encode_json(file))

    @classmethod
    def unpack(cls, data: bytes) -> Compiled:
        """Parse the output of ``pack``. Raise ValueError if it is malformed or of another version."""
        try:
            text = zlib.decompressobj().decompress(data, _MAX_BYTES)
            file = decode_json(text, _File, "the compiled programs")
            return cls(file.programs, file.maps)
        except (zlib.error, BadFile) as error:
            raise ValueError(str(error)) from error
