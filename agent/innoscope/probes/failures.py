"""Failures of one governor: why everything is off, and when it is tried again."""

from __future__ import annotations

import time
from typing import Final

#: After a failure everything is tried again after so long, twice as long after each further one, up to that.
FIRST_PAUSE_S: Final = 60.0
MOST_PAUSE_S: Final = 3600.0


class Failures:
    """``why`` is the present one; ``count`` are all there were."""

    def __init__(self) -> None:
        self.why: str | None = None
        self.count = 0
        self._pause = FIRST_PAUSE_S
        self._at = -2 * MOST_PAUSE_S
        self._retry_at: float | None = None

    def add(self, why: str, *, temporary: bool) -> None:
        """Note one now; after the longest pause without any, pauses are short again."""
        now = time.monotonic()
        if now - self._at > 2 * MOST_PAUSE_S:
            self._pause = FIRST_PAUSE_S
        self._retry_at = now + self._pause if temporary else None
        self._at, self._pause = now, min(2 * self._pause, MOST_PAUSE_S)
        self.count += 1
        self.why = why

    def clear(self) -> None:
        """It is tried again now."""
        self.why = None

    @property
    def pause_s(self) -> float | None:
        """Return the seconds until it is tried again; None for never."""
        return None if self._retry_at is None else max(0.0, self._retry_at - time.monotonic())

    def __str__(self) -> str:
        pause = self.pause_s
        return f"{self.why}; " + ("no further try" if pause is None else f"next try in {pause:.0f} s")
