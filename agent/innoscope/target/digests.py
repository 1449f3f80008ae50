"""Normalize SQL statements, so that their literals can be discarded (docs/digests.md)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

from innoscope import _native

#: Maximum length of a normalized text in characters.
MAX_CHARS: Final = 1_024
#: Maximum number of digests in a cache.
MAX_CACHED: Final = 500
_ID_BYTES: Final = 16
#: Newer versions of MySQL have the keywords and rules of MySQL 9. Both sets of keywords are compiled into the
#: Rust core (agent/native/src/digest/), so the version that separates them is not in the catalog.
_MYSQL_8: Final = (8, 0, 999)
#: MariaDB 10.0 and newer do not execute comments from ``/*!50700 … */`` to ``/*!99999 … */``. This is also
#: less than the first version with optimizer hints, whose text MariaDB does not show in its digests.
_MARIADB_COMMENTS: Final = 5_06_99
#: Assumed if the version is unknown. ``/*!99999 … */`` is never executed.
_NEWEST: Final = 9_99_98


@dataclass(frozen=True, slots=True)
class Digest:
    """A normalized statement. Names in ``text`` come from the statement: escape them before printing."""

    id: str  # 32 hex digits; a statement has the same id on all versions of MySQL
    text: str  # as in performance_schema's DIGEST_TEXT


class Rules(NamedTuple):
    """The server's version as a number, and whether it has the keywords of MySQL 9."""

    version: int
    mysql_9: bool


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
    Otherwise, the text ends at the first place where another mode could yield a different literal.
    """
    server = rules(flavour, version)
    texts = _native.normalize(
        statement, max_chars=max_chars, version=server.version, mysql_9=server.mysql_9, certain=certain
    )
    return of_normalized(*texts)


def without_literals(statement: str, *, flavour: str = "mysql", version: tuple[int, ...] = ()) -> str:
    """Return the text of a statement's digest, for a session whose mode and character set are unknown."""
    return digest(statement.encode(errors="replace"), flavour=flavour, version=version).text


def is_unfinished(statement: str) -> bool:
    """Return whether a statement ends within a string, a quoted name or a comment, or might do so."""
    return _native.is_unfinished(statement.encode(errors="replace"))


def rules(flavour: str, version: tuple[int, ...]) -> Rules:
    """Return the rules for the statements of a server."""
    if flavour == "mariadb":
        return Rules(_MARIADB_COMMENTS, mysql_9=False)
    if not version:
        return Rules(_NEWEST, mysql_9=True)
    major, minor, patch = (*version, 0, 0)[:3]
    return Rules(major * 10_000 + minor * 100 + patch, mysql_9=version > _MYSQL_8)


def of_normalized(text: str, newest: str) -> Digest:
    """Return the digest of a statement, given its text and its text according to MySQL 9's rules."""
    return Digest(digest_id(newest), text)


def digest_id(newest: str) -> str:
    """Return the id of a digest, given its complete text according to MySQL 9's rules."""
    return _native.blake2s(newest.encode(), size=_ID_BYTES).hex()


class SharedDigests:
    """A cache of digests by normalized text. Equal digests are the same object. Not thread-safe.

    When there are ``most`` digests, the next new one replaces them all.
    """

    def __init__(self, most: int = MAX_CACHED) -> None:
        self._most = most
        self._digests: dict[tuple[str, str], Digest] = {}

    def __len__(self) -> int:
        return len(self._digests)

    def digest(self, texts: tuple[str, str]) -> Digest:
        """Return the digest for ``texts``, which are the arguments of ``of_normalized``."""
        found = self._digests.get(texts)
        if found is None:
            if len(self._digests) >= self._most:
                self._digests.clear()
            found = self._digests[texts] = of_normalized(*texts)
        return found
