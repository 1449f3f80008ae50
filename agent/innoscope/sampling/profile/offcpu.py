"""What a server's threads wait for: exact times by the scheduler's events, stacks of evenly chosen waits."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from innoscope import _native
from innoscope.common.errors import InnoscopeError
from innoscope.sampling.profile.model import MICROSECONDS, Profile, Row
from innoscope.sampling.profile.naming import Places
from innoscope.sampling.profile.run import require_first_namespace
from innoscope.sampling.profile.setup import Naming, missing_names, open_samples
from innoscope.target.native_errors import translating

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from innoscope._native import Waits
    from innoscope.target.model import Target

#: Stacks that are taken in a second at most, of all threads, once the limit for one has settled.
MOST_A_SECOND: Final = 2000
#: Of one thread in 134 ms, to begin with.
_MOST_OF_A_THREAD: Final = 12
_RING_BYTES: Final = 32 << 20
_STEER_S: Final = 0.25
#: Waits that last and whose stack was not taken are looked for again and again: for that share of a CPU, but
#: with at least that pause between two looks.
_LOOK_SHARE: Final = 0.02
_LEAST_PAUSE_S: Final = 0.05
_LEAST_THREADS: Final = 16384


class OffCpuProfiler:
    """Follows the threads of one server. Raises NoRights, KernelUnable or NoSuchProcess."""

    def __init__(self, target: Target, naming: Naming | None = None) -> None:
        require_first_namespace()
        naming = naming or Naming()
        self.target = target
        with translating(target.pid):
            self._program = _native.OffCpu(
                target.pid,
                target.start_time,
                kernel=naming.kernel,
                ring_bytes=_RING_BYTES,
                most_threads=max(_LEAST_THREADS, 4 * target.threads),
            )
            ring = self._program.ring
        self._samples, notes = open_samples(target, ring, naming)
        self._places = Places(target.pid, self._samples)
        self._notes = dict.fromkeys(notes)
        if self._program.cannot_look:
            self._notes[f"threads that do not move have no stacks: {self._program.cannot_look}"] = None
        self._began_at = 0.0
        self._began = 0
        self._steering = Steering()
        self._look_at = 0.0

    def begin(self) -> None:
        """Begin to count. The stacks of waits that are under way are known by then."""
        with translating(self.target.pid):
            self._program.follow(self._steering.most)
            self._program.look(self._samples)
            self._began = self._program.begin()
            self._began_at = time.time()
        self._steering.since = time.monotonic()
        self._look_at = self._steering.since + _LEAST_PAUSE_S

    def poll(self) -> None:
        """Take what has come."""
        now = time.monotonic()
        with translating(self.target.pid):
            self._samples.read()
            if self._steering.steer(now, self._samples.taken.records):
                self._program.set_most(self._steering.most)
            if now >= self._look_at:
                self._look()

    def so_far(self) -> str:
        """``1,812 stacks of waits``."""
        return f"{self._samples.taken.records:,} records of waits"

    def finish(self) -> Profile:
        """Until now; nothing is attached any more."""
        self._look()
        with translating(self.target.pid):
            ended = self._program.end()
            settled = self._program.settle(self._samples, ended)
        rows = list(self._rows(settled.waits, {thread.tid: thread.comm for thread in settled.threads}))
        notes = missing_names(self.target, self._samples, (row.thread.frames for row in rows))
        taken = self._samples.taken
        return Profile(
            target=self.target,
            unit=MICROSECONDS,
            began_at=self._began_at,
            seconds=(ended - self._began) / 1e9,
            rows=rows,
            records=taken.records,
            bytes=taken.bytes,
            lost=self._program.lost,
            threads=settled.threads,
            seen_ns=settled.seen_ns,
            notes=self._notes | dict.fromkeys(notes),
        )

    def _look(self) -> None:
        """Waits under way; a server that has ended has none."""
        used = time.thread_time()
        try:
            with translating(self.target.pid):
                self._program.look(self._samples)
        except InnoscopeError as error:
            self._notes.setdefault(f"a look at the waiting threads failed: {error.what}")
        used = time.thread_time() - used
        self._look_at = time.monotonic() + max(_LEAST_PAUSE_S, used / _LOOK_SHARE)

    def _rows(self, waits: Iterable[Waits], comms: dict[int, str]) -> Iterator[Row]:
        for one in waits:
            comm = comms.get(one.tid, "")
            if one.blocked_ns:
                thread = self._places.blocked(one.tid, comm, one.place)
                yield Row(thread, round(one.blocked_ns / 1e3), one.count)
            if one.runnable_ns:
                thread = self._places.runnable(one.tid, comm, one.place)
                yield Row(thread, round(one.runnable_ns / 1e3), one.count)


class Steering:
    """Keeps the number of stacks a second near the limit by what one thread may have."""

    def __init__(self) -> None:
        self.most = _MOST_OF_A_THREAD
        self.since = 0.0
        self._records = 0

    def steer(self, now: float, records: int) -> bool:
        """True when ``most`` changed. ``records`` are all so far; a wait makes two of them."""
        seconds = now - self.since
        if seconds < _STEER_S:
            return False
        rate = (records - self._records) / 2 / seconds
        self.since, self._records = now, records
        before = self.most
        if rate > MOST_A_SECOND:
            self.most = max(1, int(self.most * MOST_A_SECOND / rate))
        elif rate < MOST_A_SECOND / 2:
            self.most = min(_MOST_OF_A_THREAD, self.most + 1)
        return self.most != before
