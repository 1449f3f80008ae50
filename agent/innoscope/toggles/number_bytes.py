"""Convert numbers to bytes of an exact width, and reject numbers that do not fit."""

from __future__ import annotations

import math
import struct
from typing import TYPE_CHECKING, Final

from innoscope.toggles.model import ChangeRefused

if TYPE_CHECKING:
    from collections.abc import Mapping

    from innoscope.toggles.model import Raw

_CODES: Final[Mapping[tuple[str, int], str]] = {
    (kind, size): "<" + code
    for kind, codes in (("unsigned", "BHIQ"), ("signed", "bhiq"), ("float", "  fd"))
    for code, size in zip(codes, (1, 2, 4, 8), strict=True)
    if code != " "
}


def encode(name: str, raw: Raw | None, kind: str, size: int) -> bytes:
    """Return the number's bytes in little-endian order, as on x86-64 and arm64.

    Raise ChangeRefused if the value is not a number or does not fit without loss.
    """
    code = _CODES.get((kind, size))
    if code is None:
        raise ChangeRefused(
            f"cannot encode {name}: no type {kind} of {size} bytes", remedy="correct the catalog"
        )
    if isinstance(raw, str) or raw is None or not math.isfinite(raw):
        raise ChangeRefused(f"cannot encode {name}: {raw!r} is not a number", remedy="correct the catalog")
    if kind != "float":
        if raw != int(raw):
            raise ChangeRefused(f"{name} takes whole numbers, not {raw}", remedy="use a whole number")
        raw = int(raw)
    try:
        return struct.pack(code, raw)
    except (struct.error, OverflowError) as error:
        raise ChangeRefused(
            f"{name}: {raw} does not fit into {size} {kind} bytes", remedy="use another value"
        ) from error


def decode(raw: bytes, kind: str) -> int | float:
    """Return the number that these bytes represent."""
    number: int | float = struct.unpack(_CODES[kind, len(raw)], raw)[0]
    return number
