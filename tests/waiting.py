"""Wait until a condition holds."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

Value = TypeVar("Value")


def until(
    condition: Callable[[], Value],
    message: Callable[[], object] = lambda: "the condition does not hold",
    *,
    within_s: float = 60,
    every_s: float = 0.05,
) -> Value:
    """Return the first true value of ``condition``. After ``within_s`` seconds, fail with ``message``."""
    deadline = time.monotonic() + within_s
    while not (found := condition()):
        assert time.monotonic() < deadline, message()
        time.sleep(every_s)
    return found
