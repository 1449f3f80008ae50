"""Estimate the size of text in JSON, to limit messages before they are encoded."""

from __future__ import annotations

from typing import Final

#: Maximum size of a character in JSON, in bytes. Outside the Basic Multilingual Plane, a character is encoded
#: as two surrogates, such as ``\ud83d\ude00``.
_CHARACTER: Final = 12
#: Maximum size of a printable ASCII character: quotes and backslashes are escaped.
_ASCII_CHARACTER: Final = 2


def text_bytes(text: str) -> int:
    """Return an upper bound on the size of a text in ASCII JSON, in bytes, without its quotes."""
    return len(text) * (_ASCII_CHARACTER if text.isascii() and text.isprintable() else _CHARACTER)
