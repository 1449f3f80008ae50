"""Convert the Rust core's sample counts to threads with function names and wait classes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from innoscope.sampling import descriptors
from innoscope.sampling.classify import default_classifier
from innoscope.sampling.model import Frame, Thread, Trust
from innoscope.sampling.profile.model import RUNNABLE

if TYPE_CHECKING:
    from innoscope._native import Place, Samples

#: Frames that stand for a state of the thread instead of a function.
_RUNNABLE_FRAME = Frame("[runnable]", "", 0)
_NO_STACK = (Frame("[stack not taken]", "", 0),)


class ThreadBuilder:
    """A builder of thread records. Each ``Place`` is resolved only once.

    File descriptors are resolved when they first occur, because they may later be reused for other files.
    """

    def __init__(self, pid: int, samples: Samples) -> None:
        self._pid = pid
        self._samples = samples
        self._classifier = default_classifier()
        self._syscalls = descriptors.syscall_names()
        self._frames: dict[int, tuple[Frame, ...]] = {}
        self._kinds: dict[int, str | None] = {}
        self._waits: dict[tuple[Place, str, bool], str] = {}

    def running(self, tid: int, comm: str, place: Place) -> Thread:
        """Return the record of a thread that is running on a CPU."""
        return self._thread(tid, comm, place, running=True)

    def blocked(self, tid: int, comm: str, place: Place | None) -> Thread:
        """Return the record of a blocked thread. Its ``place`` is None if its stack is unknown."""
        if place is None:
            return Thread(tid, tid, comm, "S", Trust.INCOMPLETE, "other", _NO_STACK)
        return self._thread(tid, comm, place, running=False)

    def runnable(self, tid: int, comm: str, place: Place | None) -> Thread:
        """Return the record of a thread that was preempted or woken at ``place`` and is waiting for a CPU."""
        if place is None:
            return Thread(tid, tid, comm, "R", Trust.INCOMPLETE, RUNNABLE, (_RUNNABLE_FRAME, *_NO_STACK))
        frames = (_RUNNABLE_FRAME, *self.frames(place.stack))
        return Thread(tid, tid, comm, "R", Trust(place.trust), RUNNABLE, frames, _syscall(place))

    def frames(self, stack: int) -> tuple[Frame, ...]:
        """Return the frames of a stack, innermost first."""
        known = self._frames.get(stack)
        if known is None:
            known = self._frames[stack] = self._samples.frames(stack)
        return known

    def resolve_files(self, files: set[int]) -> None:
        """Determine the file kinds of descriptors that are not known yet."""
        if unknown := files - self._kinds.keys():
            found = descriptors.kinds(self._pid, unknown)
            self._kinds |= {file: found.get(file) for file in unknown}

    def _thread(self, tid: int, comm: str, place: Place, *, running: bool) -> Thread:
        frames = self.frames(place.stack)
        if place.file >= 0:
            self.resolve_files({place.file})
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
        return Thread(tid, tid, comm, state, Trust(place.trust), wait, frames, _syscall(place))


def _syscall(place: Place) -> int | None:
    return place.syscall if place.syscall >= 0 else None
