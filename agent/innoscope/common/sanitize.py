"""Escape what could act on a terminal, a log or a reader in text of foreign origin.

Other people choose the names of threads, functions, tables and files, statements, error texts and arguments.
Everything that is printed, logged or written passes through one of these functions, at the one place where it
leaves the program: ``console``, ``logs``, the renderers. Calling them twice changes nothing.
"""

from __future__ import annotations

import hashlib
import json
import re
from typing import Any, Final

#: Nearly all text is printable ASCII, which these skip at once; only what they match is looked up.
_SUSPECT: Final = re.compile(r"[^ -~]")
_SUSPECT_IN_BLOCK: Final = re.compile(r"[^ -~\n]")
_ELLIPSIS: Final = "…"
#: Characters of a label. Longer ones are cut and end with a digest, so that they stay distinct.
LIMIT: Final = 200
_DIGEST: Final = 8


def line(text: str, limit: int | None = None) -> str:
    r"""Return ``text`` on one line with what is not printable escaped, cut to ``limit`` characters.

    Escaped is what ``str.isprintable`` rejects: C0 (line feeds and tabs too), DEL, C1, format characters
    (bidirectional controls and isolates, zero-width characters, tags), line and paragraph separators, unusual
    spaces, surrogates, private and unassigned code points. They become ``\x1b``, ``\u202e``, ``\udcff``. A
    backslash stays as it is, so the text cannot be turned back.
    """
    if not text.isprintable():
        text = _SUSPECT.sub(_escaped, text)
    return text if limit is None or len(text) <= limit else text[: max(0, limit - 1)] + _ELLIPSIS


def words(text: str, limit: int | None = None) -> str:
    """Return ``text`` like ``line``, with each run of white space as one space: statements, messages."""
    return line(" ".join(text.split()), limit)


def block(text: str) -> str:
    """Return ``text`` of several lines: like ``line``, but line feeds stay and tabs become spaces."""
    return _SUSPECT_IN_BLOCK.sub(_escaped, text.expandtabs() if "\t" in text else text)


def label(text: str, limit: int = LIMIT) -> str:
    r"""Return printable UTF-8 of bounded length: ``"a\udcff\x1b"`` becomes ``r"a\xff\x1b"``."""
    if not text.isprintable():
        text = "".join(one if one.isprintable() else _byte_escaped(one) for one in text[: 2 * limit])
    if len(text) <= limit:
        return text
    digest = hashlib.blake2s(text.encode(), digest_size=_DIGEST // 2).hexdigest()
    return f"{text[: limit - _DIGEST - 1]}…{digest}"


def dumps(value: Any, **options: Any) -> str:
    r"""Return ``value`` as JSON without a raw control character or surrogate.

    They are escaped as JSON has it (``\u001b``, ``\udcff``), so that a program reads exactly what was there.
    Other letters than ASCII stay readable.
    """
    return json_text(json.dumps(value, ensure_ascii=False, **options))


def json_text(text: str) -> str:
    """Return a JSON text with the same meaning, like that of ``dumps``."""
    return text if text.isprintable() else _SUSPECT_IN_BLOCK.sub(_json_escaped, text)


def _escaped(match: re.Match[str]) -> str:
    character = match.group()
    return character if character.isprintable() else character.encode("unicode_escape").decode("ascii")


def _json_escaped(match: re.Match[str]) -> str:
    """JSON's own escape; the only characters outside of its strings are ASCII and line feeds."""
    character = match.group()
    return character if character.isprintable() else json.dumps(character)[1:-1]


def _byte_escaped(character: str) -> str:
    """Escape one character; a surrogate of ``surrogateescape`` is shown as the byte that it stands for."""
    number = ord(character)
    if 0xDC80 <= number <= 0xDCFF:
        return f"\\x{number - 0xDC00:02x}"
    return f"\\x{number:02x}" if number < 0x100 else f"\\u{number:04x}"
