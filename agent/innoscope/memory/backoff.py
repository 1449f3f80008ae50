"""Back off after failures to read debug information. Each failure doubles the delay, up to one hour."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from innoscope.common.errors import BadFile, NotRead

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

#: Identifies a file or a process. A failure is stored under several keys.
Key = tuple[int, ...]

_FIRST_S: Final = 60.0
_MAX_S: Final = 3600.0
#: Maximum number of keys; the oldest are removed.
_MAX_KEYS: Final = 1024


@dataclass(frozen=True, slots=True)
class _Failure:
    what: str
    remedy: str | None
    delay_s: float
    until: float


class Backoff:
    """Stores the last failure for each file and process. Thread-safe."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._failures: dict[Key, _Failure] = {}

    def check(self, keys: Iterable[Key]) -> None:
        """Raise NotRead if a failure is stored under one of ``keys`` and its delay has not elapsed."""
        with self._lock:
            known = [self._failures[key] for key in keys if key in self._failures]
        for failure in known:
            if self._clock() < failure.until:
                raise _not_read(failure)

    def failed(self, keys: Sequence[Key], error: BadFile) -> NotRead:
        """Store the failure under ``keys``, and return the NotRead error to raise."""
        with self._lock:
            earlier = [self._failures.pop(key).delay_s for key in keys if key in self._failures]
            delay = min(2 * max(earlier), _MAX_S) if earlier else _FIRST_S
            failure = _Failure(error.what, error.remedy, delay, self._clock() + delay)
            self._failures |= dict.fromkeys(keys, failure)
            while len(self._failures) > _MAX_KEYS:
                del self._failures[next(iter(self._failures))]
        return _not_read(failure)

    def succeeded(self, keys: Iterable[Key]) -> None:
        """Remove the failures stored under ``keys``."""
        with self._lock:
            for key in keys:
                self._failures.pop(key, None)


def _not_read(failure: _Failure) -> NotRead:
    what = f"{failure.what}; retried after {failure.delay_s:.0f} s"
    return NotRead(what, remedy=failure.remedy)
