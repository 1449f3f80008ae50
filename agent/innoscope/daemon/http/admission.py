"""What answers that are dear to make may take together: so many at a time, so many bytes on their way."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Made at a time. An hour of 2,000 distinct stacks as HTML takes a second and 90 MB.
MAKING: Final = 1
#: Seconds that the next one waits for its turn.
PATIENCE_S: Final = 2.0
#: Bytes that were made and that clients have not taken yet.
UNTAKEN: Final = 24 << 20


class TooMuch(Exception):
    """There is no room for this answer now."""


class Load:
    """Keeps count of both; raises TooMuch where they are reached. Safe to use from several threads."""

    def __init__(self, making: int = MAKING, untaken: int = UNTAKEN, patience_s: float = PATIENCE_S) -> None:
        self._turns = threading.BoundedSemaphore(making)
        self._patience_s = patience_s
        self._lock = threading.Lock()
        self._most, self._untaken = untaken, 0

    @contextmanager
    def making(self) -> Iterator[None]:
        """While an answer is made."""
        if not self._turns.acquire(timeout=self._patience_s):
            raise TooMuch
        try:
            yield
        finally:
            self._turns.release()

    @contextmanager
    def sending(self, size: int) -> Iterator[None]:
        """While so many bytes are sent. One answer alone always has room."""
        with self._lock:
            if self._untaken and self._untaken + size > self._most:
                raise TooMuch
            self._untaken += size
        try:
            yield
        finally:
            with self._lock:
                self._untaken -= size
