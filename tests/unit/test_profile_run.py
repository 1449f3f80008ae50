"""A profile runs for as long as requested."""

from __future__ import annotations

import os
import time

from innoscope.sampling.profile import run
from innoscope.sampling.profile.model import SAMPLES, Profile
from innoscope.target.proc import ProcFs
from unit.snapshots import target

#: This process, described as a running server.
ALIVE = target(pid=os.getpid(), start_time=ProcFs().stat(os.getpid()).start_time)


class SlowProfiler:
    """A profiler that takes longer to begin than the profile lasts, as on a slow host."""

    polls = 0

    def begin(self) -> None:
        time.sleep(0.6)

    def poll(self) -> None:
        self.polls += 1

    def progress_text(self) -> str:
        return ""

    def finish(self) -> Profile:
        return Profile(
            target=ALIVE, unit=SAMPLES, began_at=0.0, seconds=0.1, rows=[], records=0, bytes=0, lost=0
        )


def test_a_slow_beginning_does_not_shorten_the_profile() -> None:
    profiler = SlowProfiler()

    profile, alive = run.run(profiler, ALIVE, 0.5)

    assert alive
    assert profile.ended is None
    assert profiler.polls > 0
