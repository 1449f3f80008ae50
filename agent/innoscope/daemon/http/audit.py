"""Log who has read stacks, sessions and incident files: one line per download.

The live page requests the same data again and again. Therefore only the first request is logged immediately.
A client's further requests within a minute for the same kind of data from the same server share one line.
"""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_log = logging.getLogger(__name__)

#: Paths whose responses are logged, and what they contain.
_KINDS: Final = {
    "/api/stacks": "stacks",
    "/api/flame": "stacks",
    "/api/sessions": "sessions",
    "/api/incidents": "incident file",
}
#: Period over which repeated requests are counted, in seconds.
_PERIOD_S: Final = 60.0
#: Maximum number of different downloads whose repetitions are counted.
_MAX_COUNTED: Final = 1_000


@dataclass(slots=True)
class _Repeated:
    """Repetitions of a download within a period; the first request has already been logged."""

    until: float
    requests: int = 0
    bytes: int = 0


@dataclass(frozen=True, slots=True)
class _Download:
    user: str
    address: str
    what: str
    server: str
    file: str


class AuditLog:
    """Writes the log lines. Thread-safe."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._repeated: dict[_Download, _Repeated] = {}

    def add(self, user: str, address: str, path: str, query: Mapping[str, str], size: int) -> None:
        """Record a response with a body of ``size`` bytes if its path is listed in ``_KINDS``."""
        what = _KINDS.get(path)
        file = query.get("file", "")
        if what is None or (path == "/api/incidents" and not file):
            return
        download = _Download(user, address, what, query.get("server", ""), file)
        with self._lock:
            repeated = self._repeated.get(download)
            if repeated is not None and self._clock() < repeated.until:
                repeated.requests += 1
                repeated.bytes += size
                return
            if repeated is not None:
                self._end(download)
            elif len(self._repeated) >= _MAX_COUNTED:
                self._end(next(iter(self._repeated)))
            self._repeated[download] = _Repeated(self._clock() + _PERIOD_S)
        _write(download, 1, size)

    def flush(self, *, everything: bool = False) -> None:
        """Log the repeated requests of each period that has ended; with ``everything``, of all periods."""
        with self._lock:
            now = self._clock()
            for download, repeated in list(self._repeated.items()):
                if everything or now >= repeated.until:
                    self._end(download)

    def _end(self, download: _Download) -> None:
        repeated = self._repeated.pop(download)
        if repeated.requests:
            _write(download, repeated.requests, repeated.bytes)


def _write(download: _Download, requests: int, size: int) -> None:
    extra = {
        "user": download.user or "-",
        "client": download.address,
        "what": download.what,
        **({"server": download.server} if download.server else {}),
        **({"file": download.file} if download.file else {}),
        "requests": requests,
        "bytes": size,
    }
    _log.info("data was read", extra=extra)
