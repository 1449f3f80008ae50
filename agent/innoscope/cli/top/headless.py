"""Record a server for ``innoscope top --record FILE`` if there is no terminal."""

from __future__ import annotations

import signal
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from innoscope.common.errors import NoSuchProcess

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

    from innoscope.cli.top.live_snapshots import LiveSnapshots


def record(
    live: LiveSnapshots, *, interval_s: float, duration_s: float | None, say: Callable[[str], None]
) -> int:
    """Record until the time is up, a signal arrives or the server exits. Return the number of snapshots.

    Raise NoSuchProcess if the server exits before the first snapshot.
    """
    snapshots = late = 0
    begun = due = time.monotonic()
    said_at = begun
    problems: set[str] = set()
    with _stop_event() as stop:
        while not stop.is_set() and (duration_s is None or due - begun < duration_s - 1e-6):
            try:
                result = live.take()
            except NoSuchProcess as error:
                if not snapshots:
                    raise
                say(f"the server exited: {error.what}")
                break
            snapshots += 1
            for problem in {result.sql_problem, *result.snapshot.notes} - {None} - problems:
                problems.add(str(problem))
                say(str(problem))
            if result.record_problem:
                say(result.record_problem)
                break
            now = time.monotonic()
            if now - said_at >= 10:
                said_at = now
                say(f"{snapshots:,} snapshots, {late:,} late, {len(result.snapshot.threads):,} threads")
            due += interval_s
            missed = max(0, int((now - due) // interval_s) + 1) if now > due else 0
            late += missed
            due += missed * interval_s
            stop.wait(max(0.0, due - now))
    say(f"{snapshots:,} snapshots recorded, {late:,} late")
    return snapshots


@contextmanager
def _stop_event() -> Iterator[threading.Event]:
    """Yield an event that SIGINT and SIGTERM set, so that a recording ends with a complete line."""
    stop = threading.Event()

    def stopped(_signum: int, _frame: FrameType | None) -> None:
        stop.set()

    before = {number: signal.signal(number, stopped) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
