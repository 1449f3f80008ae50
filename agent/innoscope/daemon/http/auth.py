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

#: bcrypt looks at no more bytes; longer passwords are refused, as newer libraries do.
_LONGEST: Final = 72
#: Each of the good and of the bad ones: guesses do not push out who was let in.
_VERDICTS_KEPT: Final = 256
#: After a wrong one none is computed for so many times the CPU time it took: guessing gets a tenth of a core.
_PAUSE: Final = 9
#: Passwords that wait to be computed, of one client and of all.
_OF_ONE: Final = 2
_OF_ALL: Final = 8


class TooManyGuesses(Exception):
    """So many unknown passwords wait already that this one is not looked at."""


class Verifier:
    """Checks ``Authorization`` headers. A hash takes about 70 ms of CPU, so verdicts are remembered.

    They are kept under a keyed digest of user, password and hash: no password stays in memory, and a changed
    hash is a new question. One hash is computed at a time, whoever asks.
    """

    def __init__(self) -> None:
        self._key = secrets.token_bytes(32)
        self._verdicts: dict[bool, dict[bytes, None]] = {True: {}, False: {}}
        self._turn = threading.Lock()
        self._lock = threading.Lock()  # of what follows
        self._waiting: Counter[str] = Counter()

    def admits(self, header: str | None, users: Mapping[str, bytes], client: str = "") -> bool:
        """Whether the header has a user and the right password; where there are no users, all are let in.

        ``client`` is who asks, as ``connections.counted_as`` has it. Raises TooManyGuesses.
        """
        if not users:
            return True
        account = parse(header)
        if account is None:
            return False
        user, password = account
        # an unknown user takes as long as a known one
        hashed = users.get(user) or next(iter(users.values()))
        key = hmac.new(self._key, b"\0".join((user.encode(), password, hashed)), hashlib.sha256).digest()
        verdict = self._known(key)
        if verdict is None:
            verdict = self._compute(key, password, hashed, client)
        return verdict and user in users

    def _known(self, key: bytes) -> bool | None:
        return next((verdict for verdict, keys in self._verdicts.items() if key in keys), None)

    def _compute(self, key: bytes, password: bytes, hashed: bytes, client: str) -> bool:
        with self._waits(client), self._turn:  # whoever is known already does not wait for it
            verdict = self._known(key)
            if verdict is None:
                began = time.thread_time()
                verdict = _matches(password, hashed)
                self._keep(key, verdict)
                if not verdict:
                    time.sleep(_PAUSE * (time.thread_time() - began))
            return verdict

    def _keep(self, key: bytes, verdict: bool) -> None:
        keys = self._verdicts[verdict]
        while len(keys) >= _VERDICTS_KEPT:
            del keys[next(iter(keys))]
        keys[key] = None

    @contextmanager
    def _waits(self, client: str) -> Iterator[None]:
        with self._lock:
            if self._waiting[client] >= _OF_ONE or self._waiting.total() >= _OF_ALL:
                raise TooManyGuesses
            self._waiting[client] += 1
        try:
            yield
        finally:
            with self._lock:
                self._waiting[client] -= 1
                self._waiting += Counter()  # without the zeros


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
    """Raise BadFile where the package is missing: at start, not at the first scrape."""
    try:  # here, since an agent without users works without it
        import bcrypt  # noqa: F401 - here, since an agent without users works without it
    except ImportError as error:
        raise BadFile(
            "basic_auth_users needs the Python package bcrypt", remedy="apt-get install python3-bcrypt"
        ) from error


def _matches(password: bytes, hashed: bytes) -> bool:
    import bcrypt  # as above

    if len(password) > _LONGEST or b"\0" in password:
        return False
    try:
        return bcrypt.checkpw(password, hashed)
    except ValueError:  # a hash that only looks like one
        return False
