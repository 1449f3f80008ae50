"""HTTP basic authentication against bcrypt hashes."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import secrets
import threading
from typing import TYPE_CHECKING, Final

from innoscope.errors import BadFile

if TYPE_CHECKING:
    from collections.abc import Mapping

#: What an unknown user's password is compared with, so that it takes as long as a known one's.
_NOBODY: Final = b"$2b$10$pQ3CMLGZhpcauhW.9Lrqzu9oGE98iltG0JcND65kIDsNKdHl/y7Le"
#: bcrypt looks at no more bytes; longer passwords are refused, as newer libraries do.
_LONGEST: Final = 72
_VERDICTS_KEPT: Final = 256


class Verifier:
    """Checks ``Authorization`` headers. A hash takes about 70 ms of CPU, so verdicts are remembered.

    They are kept under a keyed digest of user, password and hash: no password stays in memory, and a changed
    hash is a new question. One hash is computed at a time, whoever asks.
    """

    def __init__(self) -> None:
        self._key = secrets.token_bytes(32)
        self._verdicts: dict[bytes, bool] = {}
        self._lock = threading.Lock()

    def admits(self, header: str | None, users: Mapping[str, bytes]) -> bool:
        """Whether the header has a user and the right password; where there are no users, all are let in."""
        if not users:
            return True
        account = parse(header)
        if account is None:
            return False
        user, password = account
        known = user in users
        hashed = users.get(user, _NOBODY)
        key = hmac.new(self._key, b"\0".join((user.encode(), password, hashed)), hashlib.sha256).digest()
        verdict = self._verdicts.get(key)
        if verdict is None:
            with self._lock:  # whoever is known already does not wait for it
                verdict = _matches(password, hashed)
                while len(self._verdicts) >= _VERDICTS_KEPT:
                    del self._verdicts[next(iter(self._verdicts))]
                self._verdicts[key] = verdict
        return verdict and known


def parse(header: str | None) -> tuple[str, bytes] | None:
    """``(user, password)`` of an ``Authorization: Basic …`` header; None for anything else."""
    scheme, _, coded = (header or "").partition(" ")
    if scheme.lower() != "basic":
        return None
    try:
        user, colon, password = base64.b64decode(coded.strip(), validate=True).partition(b":")
        return (user.decode(), password) if colon else None
    except (binascii.Error, UnicodeDecodeError):
        return None


def require_bcrypt() -> None:
    """Raises BadFile where the package is missing: at start, not at the first scrape."""
    try:
        import bcrypt  # noqa: F401
    except ImportError as error:
        raise BadFile(
            "basic_auth_users needs the Python package bcrypt", remedy="apt-get install python3-bcrypt"
        ) from error


def _matches(password: bytes, hashed: bytes) -> bool:
    import bcrypt

    if len(password) > _LONGEST or b"\0" in password:
        return False
    try:
        return bcrypt.checkpw(password, hashed)
    except ValueError:  # a hash that only looks like one
        return False
