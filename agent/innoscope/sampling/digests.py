"""Normalize SQL statements, so that literals never leave the process that reads them (docs/digests.md)."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2s
from typing import Final

from innoscope._native import normalise

#: Maximum length of a normalized text in characters.
MAX_CHARS: Final = 1_024
_ID_BYTES: Final = 16
#: The last version of MySQL whose keywords and rules are those of 8.0.
_MYSQL_8: Final = (8, 0, 999)
#: MariaDB 10.0 and newer do not execute comments from ``/*!50700 … */`` to ``/*!99999 … */``.
_MARIADB_COMMENTS: Final = 5_06_99
#: Assumed if the version is unknown. ``/*!99999 … */`` is never executed.
_NEWEST: Final = 9_99_98


@dataclass(frozen=True, slots=True)
class Digest:
    """A normalized statement. Names in ``text`` come from the statement: escape them before printing."""

    id: str  # 32 hex digits; a statement has the same id on all versions of MySQL
    text: str  # as in performance_schema's DIGEST_TEXT


def digest(
    statement: bytes,
    *,
    flavour: str = "mysql",
    version: tuple[int, ...] = (),
    certain: bool = False,
    max_chars: int = MAX_CHARS,
) -> Digest:
    """Return the digest of a statement, which may be truncated.

    Set ``certain`` if the session's ``sql_mode`` is known to contain neither ``NO_BACKSLASH_ESCAPES`` nor
    ``ANSI_QUOTES``, and its character set is not ``big5``, ``cp932``, ``gbk``, ``gb18030`` or ``sjis``.
    Otherwise, the text ends at the first place where another mode could give a different literal.
    """
    if flavour == "mariadb":
        number, mysql_9 = _MARIADB_COMMENTS, False
    elif version:
        major, minor, patch = (*version, 0, 0)[:3]
        number, mysql_9 = major * 10_000 + minor * 100 + patch, version > _MYSQL_8
    else:
        number, mysql_9 = _NEWEST, True
    text, newest = normalise(statement, max_chars=max_chars, version=number, mysql_9=mysql_9, certain=certain)
    return Digest(blake2s(newest.encode(), digest_size=_ID_BYTES).hexdigest(), text)
