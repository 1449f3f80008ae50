"""What the compiler makes of a C text: code and the maps it uses, as bytes that can be kept."""

from __future__ import annotations

import base64
import json
import zlib
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

#: Of the bytes; another number is of another Innoscope.
_FORMAT: Final = 1
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


@dataclass(frozen=True, slots=True)
class Compiled:
    """``programs`` has struct bpf_insn after struct bpf_insn; a map is an index in ``maps`` there."""

    programs: Mapping[str, bytes]
    maps: tuple[Shape, ...]

    def pack(self) -> bytes:
        """As bytes for ``unpack``."""
        record = {
            "format": _FORMAT,
            "programs": {name: base64.b64encode(code).decode() for name, code in self.programs.items()},
            "maps": [asdict(shape) for shape in self.maps],
        }
        return zlib.compress(json.dumps(record).encode())

    @classmethod
    def unpack(cls, data: bytes) -> Compiled:
        """Raises ValueError for what ``pack`` of this version did not make."""
        try:
            record: dict[str, Any] = json.loads(zlib.decompressobj().decompress(data, _MOST_BYTES))
            if record["format"] != _FORMAT:
                raise ValueError("of another version")
            programs = {name: base64.b64decode(code) for name, code in record["programs"].items()}
            return cls(programs, tuple(Shape(**shape) for shape in record["maps"]))
        except (zlib.error, KeyError, TypeError, AttributeError) as error:
            raise ValueError(str(error)) from error
