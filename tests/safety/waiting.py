"""Wait for a condition that no event announces."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


def until(holds: Callable[[], object], within_s: float = 60, interval_s: float = 0.02) -> None:
    """Return as soon as ``holds()`` is true. Fail if it is not within ``within_s``."""
    deadline = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < deadline, f"not within {within_s} s"
        time.sleep(interval_s)
