"""From what the core counted to threads with functions and wait classes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from innoscope.sampling import descriptors
from innoscope.sampling.classify import default_classifier
from innoscope.sampling.model import Frame, Thread, Trust
from innoscope.sampling.profile.model import RUNNABLE

if TYPE_CHECKING:
    from innoscope._native import Place, Samples

#: Frames that are no functions.
_READY = Frame("[runnable]", "", 0)
_UNSEEN = (Frame("[stack not taken]", "", 0),)


class Places:
    """Names each place once. Descriptors are looked up when they are met first: later they may be others."""

    def __init__(self, pid: int, samples: Samples) -> None:
        self._pid = pid
        self._samples = samples
        self._classifier = default_classifier()
        self._syscalls = descriptors.syscall_names()
        self._frames: dict[int, tuple[Frame, ...]] = {}
        self._kinds: dict[int, str | None] = {}
        self._waits: dict[tuple[Place, str, bool], str] = {}

    def running(self, tid: int, comm: str, place: Place) -> Thread:
        """A thread on a CPU."""
        return self._thread(tid, comm, place, running=True)

    def blocked(self, tid: int, comm: str, place: Place | None) -> Thread:
        """A thread that waits for something; its stack may be unknown."""
        if place is None:
            return Thread(tid, tid, comm, "S", Trust.INCOMPLETE, "other", _UNSEEN)
        return self._thread(tid, comm, place, running=False)

    def runnable(self, tid: int, comm: str, place: Place | None) -> Thread:
        """A thread that was preempted or woken there, and waits for a CPU."""
        if place is None:
            return Thread(tid, tid, comm, "R", Trust.INCOMPLETE, RUNNABLE, (_READY, *_UNSEEN))
        frames = (_READY, *self.frames(place.stack))
        return Thread(tid, tid, comm, "R", Trust(place.trust), RUNNABLE, frames, _call(place))

    def frames(self, stack: int) -> tuple[Frame, ...]:
        """Innermost first."""
        known = self._frames.get(stack)
        if known is None:
            known = self._frames[stack] = self._samples.frames(stack)
        return known

    def learn_files(self, files: set[int]) -> None:
        """Look up these descriptors now, those that are not known."""
        if fresh := files - self._kinds.keys():
            found = descriptors.kinds(self._pid, fresh)
            self._kinds |= {file: found.get(file) for file in fresh}

    def _thread(self, tid: int, comm: str, place: Place, *, running: bool) -> Thread:
        frames = self.frames(place.stack)
        if place.file >= 0:
            self.learn_files({place.file})
        key = (place, comm, running)
        wait = self._waits.get(key)
        if wait is None:
            wait = self._waits[key] = self._classifier.classify(
                frames,
                comm=comm,
                syscall=self._syscalls.get(place.syscall),
                file=self._kinds.get(place.file),
                running=running,
            )
        state = "R" if running else "S"
        return Thread(tid, tid, comm, state, Trust(place.trust), wait, frames, _call(place))


def _call(place: Place) -> int | None:
    return place.syscall if place.syscall >= 0 else None
