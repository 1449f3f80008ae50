"""Compiled BPF code with its maps, and its serialisation."""

from __future__ import annotations

import base64
import json
import zlib
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

#: Version of the serialised format.
_FORMAT: Final = 1
#: A hundred programs take 200 KB.
_MAX_BYTES: Final = 32 << 20


@dataclass(frozen=True, slots=True)
class Shape:
    """A map as described in /proc/self/fdinfo: ``kind`` is an enum bpf_map_type, sizes are in bytes."""

    name: str
    kind: int
    key_bytes: int
    value_bytes: int
    entries: int
    flags: int


@dataclass(frozen=True, slots=True)
class Compiled:
    """``programs`` are arrays of struct bpf_insn, in which a map is referred to by its index in ``maps``."""

    programs: Mapping[str, bytes]
    maps: tuple[Shape, ...]

    def pack(self) -> bytes:
        """Serialise it for ``unpack``."""
        record = {
            "format": _FORMAT,
            "programs": {name: base64.b64encode(code).decode() for name, code in self.programs.items()},
            "maps": [asdict(shape) for shape in self.maps],
        }
        return zlib.compress(json.dumps(record).encode())

    @classmethod
    def unpack(cls, data: bytes) -> Compiled:
        """Parse the output of ``pack``. Raises ValueError for malformed data or another version."""
        try:
            record: dict[str, Any] = json.loads(zlib.decompressobj().decompress(data, _MAX_BYTES))
            if record["format"] != _FORMAT:
                raise ValueError("another format version")
            programs = {name: base64.b64decode(code) for name, code in record["programs"].items()}
            return cls(programs, tuple(Shape(**shape) for shape in record["maps"]))
        except (zlib.error, KeyError, TypeError, AttributeError) as error:
            raise ValueError(str(error)) from error
