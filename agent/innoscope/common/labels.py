"""Make untrusted text printable for the labels of metrics, and limit its length."""

from __future__ import annotations

from typing import Final

from innoscope import _native
from innoscope.common import sanitize

#: Maximum label length in characters. Longer labels are cut, and end with a digest that distinguishes them.
LIMIT: Final = 200
_DIGEST: Final = 8


def label(text: str, limit: int = LIMIT) -> str:
    r"""Return a printable version of ``text``, at most ``limit`` characters long.

    ``"a\udcff\x1b"`` becomes ``r"a\xff\x1b"``. Backslashes are not escaped, so a text that contains these
    escapes literally has the same label.
    """
    shown = text if text.isprintable() else sanitize.escape_bytes(text[: limit + 1])
    if len(shown) <= limit:
        return shown
    digest = _native.blake2s(text.encode(errors="surrogatepass"), size=_DIGEST // 2).hex()
    return f"{shown[: limit - _DIGEST - 1]}…{digest}"
