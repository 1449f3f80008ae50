"""Sample data and a simulated clock for tests of the active session history."""

from __future__ import annotations

from typing import TYPE_CHECKING

from innoscope import _native
from innoscope.sampling.sessions import files
from innoscope.sampling.sessions.model import Batch, Sampled, SharedValues
from innoscope.target.digests import digest_id

if TYPE_CHECKING:
    from pathlib import Path

#: 2023-11-14 22:00:00 UTC, the start of an hour.
START = 1_699_999_200
STATEMENT = "UPDATE `t` SET `b` = `b` + ? WHERE `a` = ?"
DIGEST = digest_id(STATEMENT)
STACK = ("os_event::wait", "lock_wait_suspend_thread", "row_upd_step", "do_command")


class Clock:
    """A simulated clock, which advances only when a test sets ``now``."""

    def __init__(self, now: float = START) -> None:
        self.now = float(now)

    def __call__(self) -> float:
        return self.now


def shape(wait: str = "row_lock", user: str | None = "app", stack: tuple[str, ...] = STACK) -> SharedValues:
    """Return the shared values of samples in which a client thread is executing STATEMENT."""
    return SharedValues(
        "connection", user, "shop", DIGEST, "Query", wait, None, None, "exact", "exact", stack
    )


def batch(at: float, tids: range = range(10, 13), weight: float = 1.0, *shapes: SharedValues) -> Batch:
    """Return a batch with one snapshot, in which the busy threads ``tids`` cycle through ``shapes``."""
    shapes = shapes or (shape(),)
    sampled = Sampled(
        int(at * 1e6),
        weight,
        list(tids),
        [number % len(shapes) for number in range(len(tids))],
        [100 + tid for tid in tids],
        [None] * len(tids),
    )
    return Batch(shapes, [sampled], {DIGEST: STATEMENT})


def rows(folder: Path) -> dict[tuple[int, int], int]:
    """Return the number of samples per (second, thread) in a history; fail if a file is damaged."""
    paths = [part.file("samples") for part in files.live_parts(folder)]
    groups, rest, _, failed = _native.history_group(
        "samples",
        [path for path in paths if path.exists()],
        span=(0, 1 << 62),
        by=["taken_at", "tid"],
        filters=[],
        most_groups=100_000,
    )
    assert failed == []
    assert rest == (0.0, 0)
    return {(int(at) // 1_000_000, int(tid)): count for (at, tid), _, count in groups}  # type: ignore[arg-type]
