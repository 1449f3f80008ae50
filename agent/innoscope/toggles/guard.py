"""Guards a server while somebody else debugs it: stopped for too long, it is rescued."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeAlias

from innoscope.target.native_errors import gone
from innoscope.target.proc import ProcFs
from innoscope.toggles import standing, unstick
from innoscope.toggles.model import ChangeFailed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from innoscope.target.model import Target
    from innoscope.toggles.standing import Thread
    from innoscope.toggles.unstick import Record, Rescue

#: Seconds between looks at the main thread, which every debugger stops, and between looks at all threads.
_POLL_S: Final = 0.1
_ALL_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class Watched:
    """One look: for how many seconds the server has stood still, 0 when it runs."""

    still_s: float


Event: TypeAlias = "Watched | Rescue | ChangeFailed"


def watch(target: Target, patience_s: float, *, record: Record = unstick.nothing) -> Iterator[Event]:
    """What happens, look by look, without an end: ten times a second, and what each rescue came to.

    Whoever holds the server for longer than ``patience_s`` is ended. A rescue that failed is told, and tried
    again after as long. Raises NoSuchProcess when the server has ended, and Refused or NoRights where
    no rescue is possible.
    """
    seen = _Seen(target)
    while True:
        still_s = seen.look()
        if still_s > patience_s:
            still_s = seen.look(everywhere=True)
        yield Watched(still_s)
        if still_s > patience_s:
            yield _rescue(target, record)
            seen = _Seen(target)
        time.sleep(_POLL_S)


def _rescue(target: Target, record: Record) -> Event:
    found = unstick.find(target)
    if not found.still:  # it was let go at the last moment
        return Watched(0.0)
    try:
        return unstick.rescue(target, found, end_tracer=True, record=record)
    except ChangeFailed as failure:
        return failure


@dataclass(slots=True)
class _Seen:
    """Since when each thread has stood still, by thread id: how it was seen then, and the clock."""

    target: Target
    since: dict[int, tuple[Thread, float]] = field(default_factory=dict)
    all_at: float | None = None

    def look(self, *, everywhere: bool = False) -> float:
        """For how many seconds the thread that has stood longest has done so, as far as was looked."""
        now = time.monotonic()
        everywhere = everywhere or self.all_at is None or now - self.all_at >= _ALL_S
        threads = self._threads(everywhere)
        if everywhere:
            self.all_at = now
            self.since = {tid: seen for tid, seen in self.since.items() if tid in threads}
        unmoved = standing.standing_still({tid: seen for tid, (seen, _) in self.since.items()}, threads)
        kept = {thread.tid for thread in unmoved}
        for tid, thread in threads.items():
            if not thread.still:
                self.since.pop(tid, None)
            elif tid not in kept:
                self.since[tid] = (thread, now)
        return max((now - at for _, at in self.since.values()), default=0.0)

    def _threads(self, everywhere: bool) -> dict[int, Thread]:
        proc, pid = ProcFs(), self.target.pid
        try:
            if proc.stat(pid).start_time == self.target.start_time:
                return standing.threads(proc, pid, None if everywhere else (pid,))
        except ProcessLookupError:
            pass
        raise gone(pid)
