"""Files whose debug information could not be read: each is tried again later and later."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from innoscope.errors import BadFile, NotRead

if TYPE_CHECKING:
    from collections.abc import Callable

#: Device, inode, size, and time of the last change in ns: nobody else can have a file with the same.
Identity = tuple[int, int, int, int]

_FIRST_S: Final = 60.0
_MOST_S: Final = 3600.0
#: Files that are remembered; the oldest are forgotten.
_KEPT: Final = 1024


@dataclass(frozen=True, slots=True)
class _Failure:
    what: str
    remedy: str | None
    delay_s: float
    until: float


class Backoff:
    """Remembers failures by file. Thread-safe."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._failures: dict[Identity, _Failure] = {}

    def check(self, file: Identity) -> None:
        """Raise NotRead if the file failed, and it is too early to try it again."""
        with self._lock:
            failure = self._failures.get(file)
        if failure is not None and self._clock() < failure.until:
            raise _not_read(failure)

    def failed(self, file: Identity, error: BadFile) -> NotRead:
        """Remember the failure, and return it as the error to raise."""
        with self._lock:
            earlier = self._failures.pop(file, None)
            delay = min(2 * earlier.delay_s, _MOST_S) if earlier is not None else _FIRST_S
            failure = _Failure(error.what, error.remedy, delay, self._clock() + delay)
            self._failures[file] = failure
            while len(self._failures) > _KEPT:
                del self._failures[next(iter(self._failures))]
        return _not_read(failure)

    def succeeded(self, file: Identity) -> None:
        """Forget its failures."""
        with self._lock:
            self._failures.pop(file, None)


def _not_read(failure: _Failure) -> NotRead:
    words = f"{failure.what}; tried again {failure.delay_s:.0f} s later"
    return NotRead(words, remedy=failure.remedy)
