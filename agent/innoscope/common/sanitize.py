"""Escape characters in untrusted text that could control a terminal, forge a log line or mislead a reader.

Untrusted text includes statements, error messages, arguments, and the names of threads, functions, tables
and files. Text is escaped once, where it leaves the program: in ``console``, ``logs`` and the renderers.
Escaping twice changes nothing.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final

#: Characters that are not printable ASCII. Most text contains none and needs no further checks.
_SUSPECT: Final = re.compile(r"[^ -~]")
_SUSPECT_IN_BLOCK: Final = re.compile(r"[^ -~\n]")
_ELLIPSIS: Final = "…"


def line(text: str, limit: int | None = None) -> str:
    r"""Return ``text`` on one line with unprintable characters escaped, cut to ``limit`` characters.

    This escapes all characters that ``str.isprintable`` rejects: C0 (including line feeds and tabs), DEL, C1,
    format characters (bidirectional controls and isolates, zero-width characters, tags), line and paragraph
    separators, unusual spaces, surrogates, private and unassigned code points. Examples of escapes: ``\x1b``,
    ``\u202e``, ``\udcff``. Backslashes are not escaped, so the original text cannot be restored.
    """
    if not text.isprintable():
        text = _SUSPECT.sub(_escaped, text)
    return text if limit is None or len(text) <= limit else text[: max(0, limit - 1)] + _ELLIPSIS


def words(text: str, limit: int | None = None) -> str:
    """Collapse each run of white space to one space, then escape and cut ``text`` with ``line``."""
    return line(" ".join(text.split()), limit)


def block(text: str) -> str:
    """Escape the same characters as ``line`` in a multi-line text, but keep line feeds and expand tabs."""
    return _SUSPECT_IN_BLOCK.sub(_escaped, text.expandtabs() if "\t" in text else text)


def escape_bytes(text: str) -> str:
    r"""Return ``text`` on one line with unprintable characters escaped.

    A surrogate is shown as the byte that it stands for: ``"a\udcff\x1b"`` becomes ``r"a\xff\x1b"``.
    """
    return "".join(one if one.isprintable() else _byte_escaped(one) for one in text)


def dumps(value: Any, **options: Any) -> str:
    r"""Return ``value`` as JSON without raw control characters or surrogates.

    Control characters and surrogates become JSON escapes (``\u001b``, ``\udcff``), so a program reads back
    the original text. Printable non-ASCII characters stay as they are.
    """
    return json_text(json.dumps(value, ensure_ascii=False, **options))


def json_text(text: str) -> str:
    """Escape a JSON text in the same way as ``dumps``, without changing its meaning."""
    return text if text.isprintable() else _SUSPECT_IN_BLOCK.sub(_json_escaped, text)


def _escaped(match: re.Match[str]) -> str:
    character = match.group()
    return character if character.isprintable() else character.encode("unicode_escape").decode("ascii")


def _json_escaped(match: re.Match[str]) -> str:
    """Return the character's JSON escape. Outside strings, JSON is printable ASCII and needs no escapes."""
    character = match.group()
    return character if character.isprintable() else json.dumps(character)[1:-1]


def _byte_escaped(character: str) -> str:
    """Escape one character. A surrogate from ``surrogateescape`` becomes the byte that it stands for."""
    number = ord(character)
    if 0xDC80 <= number <= 0xDCFF:
        return f"\\x{number - 0xDC00:02x}"
    return f"\\x{number:02x}" if number < 0x100 else f"\\u{number:04x}"
