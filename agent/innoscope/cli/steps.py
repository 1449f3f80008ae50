"""Show the progress of a slow step."""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from innoscope.common import console

if TYPE_CHECKING:
    from collections.abc import Iterator

_QUIET_S: Final = 2.0


@contextmanager
def step(what: str) -> Iterator[None]:
    """Show the step and the elapsed time on standard error, after 2 s and only on a terminal."""
    if not console.shows_progress():
        yield
        return
    done = threading.Event()

    def show() -> None:
        began = time.monotonic()
        waited = _QUIET_S
        while not done.wait(waited):
            console.progress(f"{what}: {time.monotonic() - began:.0f} s")
            waited = 1.0

    ticker = threading.Thread(target=show, daemon=True)
    ticker.start()
    try:
        yield
    finally:
        done.set()
        ticker.join()
        console.clear_progress()
