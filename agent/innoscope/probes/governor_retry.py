"""Record the failures of one governor, and decide when to retry."""

from __future__ import annotations

import time
from typing import Final

#: Seconds before the first retry. The pause doubles after each further failure.
FIRST_PAUSE_S: Final = 60.0
#: Maximum seconds before a retry.
MAX_PAUSE_S: Final = 3600.0


class Failures:
    """The failures of one governor. ``why`` is the current reason, ``count`` the total number."""

    def __init__(self) -> None:
        self.why: str | None = None
        self.count = 0
        self._pause = FIRST_PAUSE_S
        self._at = -2 * MAX_PAUSE_S
        self._retry_at: float | None = None

    def add(self, why: str, *, temporary: bool) -> None:
        """Record a failure. Plan a retry only if it is ``temporary``.

        More than ``2 * MAX_PAUSE_S`` seconds without failures reset the pause.
        """
        now = time.monotonic()
        if now - self._at > 2 * MAX_PAUSE_S:
            self._pause = FIRST_PAUSE_S
        self._retry_at = now + self._pause if temporary else None
        self._at, self._pause = now, min(2 * self._pause, MAX_PAUSE_S)
        self.count += 1
        self.why = why

    def clear(self) -> None:
        """Clear the reason before a retry."""
        self.why = None

    @property
    def pause_s(self) -> float | None:
        """Return the seconds until the retry, or None if no retry is planned."""
        return None if self._retry_at is None else max(0.0, self._retry_at - time.monotonic())

    def __str__(self) -> str:
        pause = self.pause_s
        return f"{self.why}; " + ("no retry" if pause is None else f"retry in {pause:.0f} s")
