"""HTTP basic authentication against bcrypt hashes."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import secrets
import threading
import time
from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from innoscope.common.errors import BadFile

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

#: bcrypt uses only this many bytes. Longer passwords are rejected, as in newer bcrypt libraries.
_MAX_PASSWORD_BYTES: Final = 72
#: Size of each of the two caches. Correct and wrong passwords are cached separately, so that wrong guesses do
#: not evict correct passwords.
_MAX_CACHED: Final = 256
#: Pause after a wrong password, as a multiple of the hash's CPU time, to limit guessing to 10 % of a core.
_PAUSE_FACTOR: Final = 9
#: Maximum number of passwords that wait to be hashed or are being hashed, per client.
_MAX_PER_CLIENT: Final = 2
#: The same for all clients together.
_MAX_WAITING: Final = 8


class TooManyGuesses(Exception):
    """Too many unknown passwords are waiting to be hashed, so this password is not checked."""


class Verifier:
    """Checks ``Authorization`` headers. A bcrypt hash of cost 10 takes 70 ms of CPU time: results are cached.

    The cache key is a keyed digest of user, password and hash: no password is stored, and a changed hash
    invalidates the result. One hash is computed at a time.
    """

    def __init__(self) -> None:
        self._key = secrets.token_bytes(32)
        self._cache: dict[bool, dict[bytes, None]] = {True: {}, False: {}}
        self._hashing = threading.Lock()
        self._lock = threading.Lock()  # protects _waiting
        self._waiting: Counter[str] = Counter()

    def admits(self, header: str | None, users: Mapping[str, bytes], client: str = "") -> bool:
        """Return whether the header contains a user's correct password; True if no users are configured.

        ``client`` is a result of ``connections.client_of``. Raise TooManyGuesses if too many passwords are
        waiting to be hashed.
        """
        if not users:
            return True
        account = parse(header)
        if account is None:
            return False
        user, password = account
        # also hash if the user is unknown, so that the response time does not reveal user names
        hashed = users.get(user) or next(iter(users.values()))
        key = hmac.new(self._key, b"\0".join((user.encode(), password, hashed)), hashlib.sha256).digest()
        correct = self._cached(key)
        if correct is None:
            correct = self._compute(key, password, hashed, client)
        return correct and user in users

    def _cached(self, key: bytes) -> bool | None:
        return next((correct for correct, keys in self._cache.items() if key in keys), None)

    def _compute(self, key: bytes, password: bytes, hashed: bytes, client: str) -> bool:
        with self._waits(client), self._hashing:
            correct = self._cached(key)
            if correct is None:
                started = time.thread_time()
                correct = _matches(password, hashed)
                self._store(key, correct)
                if not correct:
                    time.sleep(_PAUSE_FACTOR * (time.thread_time() - started))
            return correct

    def _store(self, key: bytes, correct: bool) -> None:
        keys = self._cache[correct]
        while len(keys) >= _MAX_CACHED:
            del keys[next(iter(keys))]
        keys[key] = None

    @contextmanager
    def _waits(self, client: str) -> Iterator[None]:
        with self._lock:
            if self._waiting[client] >= _MAX_PER_CLIENT or self._waiting.total() >= _MAX_WAITING:
                raise TooManyGuesses
            self._waiting[client] += 1
        try:
            yield
        finally:
            with self._lock:
                self._waiting[client] -= 1
                self._waiting += Counter()  # drop entries that are zero


def parse(header: str | None) -> tuple[str, bytes] | None:
    """Return ``(user, password)`` from an ``Authorization: Basic …`` header; None for any other value."""
    scheme, _, coded = (header or "").partition(" ")
    if scheme.lower() != "basic":
        return None
    try:
        user, colon, password = base64.b64decode(coded.strip(), validate=True).partition(b":")
        return (user.decode(), password) if colon else None
    except (binascii.Error, UnicodeDecodeError):
        return None


def require_bcrypt() -> None:
    """Raise BadFile if the package bcrypt is missing. Call this at startup, before the first scrape."""
    try:
        import bcrypt  # noqa: F401 - optional: only needed with basic_auth_users
    except ImportError as error:
        raise BadFile(
            "basic_auth_users needs the Python package bcrypt", remedy="apt-get install python3-bcrypt"
        ) from error


def _matches(password: bytes, hashed: bytes) -> bool:
    import bcrypt  # optional, see require_bcrypt

    if len(password) > _MAX_PASSWORD_BYTES or b"\0" in password:
        return False
    try:
        return bcrypt.checkpw(password, hashed)
    except ValueError:  # malformed hash
        return False
