"""Turn untrusted text into a label or a name of bounded length."""

from __future__ import annotations

import hashlib
from typing import Final

#: Maximum characters of a label. Longer ones are cut and end with a digest, so that they stay distinct.
LIMIT: Final = 200
_DIGEST: Final = 8


def label(text: str, limit: int = LIMIT) -> str:
    r"""Return printable UTF-8 of bounded length: ``"a\udcff\x1b"`` becomes ``r"a\xff\x1b"``."""
    if not text.isprintable():
        text = "".join(one if one.isprintable() else _escaped(one) for one in text[: 2 * limit])
    if len(text) <= limit:
        return text
    digest = hashlib.blake2s(text.encode(), digest_size=_DIGEST // 2).hexdigest()
    return f"{text[: limit - _DIGEST - 1]}…{digest}"


def _escaped(character: str) -> str:
    """Escape one character. Show a surrogate of ``surrogateescape`` as the byte that it stands for."""
    number = ord(character)
    if 0xDC80 <= number <= 0xDCFF:
        return f"\\x{number - 0xDC00:02x}"
    return f"\\x{number:02x}" if number < 0x100 else f"\\u{number:04x}"
