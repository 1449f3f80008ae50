"""Limit how many expensive responses are generated at a time, and how many bytes may be unsent."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Maximum number of responses generated at a time. HTML with 2,000 distinct stacks takes 1 s and 90 MB.
MAX_GENERATING: Final = 1
#: Maximum time in seconds that a request waits for its turn. The live page sends five requests at once, and
#: each of them may take a second on a busy host.
PATIENCE_S: Final = 5.0
#: Maximum size of all generated responses that clients have not received yet, in bytes.
MAX_UNSENT: Final = 24 << 20


class Overloaded(Exception):
    """A limit is reached; the request must be refused."""


class ExpensiveResponses:
    """Enforces the limits on generating and sending responses. Thread-safe."""

    def __init__(
        self, generating: int = MAX_GENERATING, unsent: int = MAX_UNSENT, patience_s: float = PATIENCE_S
    ) -> None:
        self._turns = threading.BoundedSemaphore(generating)
        self._patience_s = patience_s
        self._lock = threading.Lock()
        self._max_unsent, self._unsent = unsent, 0

    @contextmanager
    def generating(self) -> Iterator[None]:
        """Wait for a turn to generate a response. Raise Overloaded after ``patience_s`` seconds."""
        if not self._turns.acquire(timeout=self._patience_s):
            raise Overloaded
        try:
            yield
        finally:
            self._turns.release()

    @contextmanager
    def sending(self, size: int) -> Iterator[None]:
        """Count ``size`` bytes as unsent. Raise Overloaded above the limit, unless nothing else is unsent."""
        with self._lock:
            if self._unsent and self._unsent + size > self._max_unsent:
                raise Overloaded
            self._unsent += size
        try:
            yield
        finally:
            with self._lock:
                self._unsent -= size
