"""Run a watchdog thread, one per process, that detaches the probes of governors that failed or hang."""

from __future__ import annotations

import logging
import signal
import threading
import time
from typing import Final, Protocol

_LOG = logging.getLogger(__name__)

PERIOD_S: Final = 0.5
#: After this many failed attempts in a row to detach the probes of a governor, the process aborts, so that
#: the kernel detaches all its probes.
_MAX_FAILURES: Final = 3


class Attached(Protocol):
    """The part of an attachment that the guard uses."""

    def disable(self) -> None:
        """Detach everything and keep it detached."""


class GuardedGovernor(Protocol):
    """The part of a governor that the guard uses."""

    @property
    def attachment(self) -> Attached:
        """Return the attachment with the governor's probes."""

    def check(self, now: float) -> bool:
        """Return whether everything must be detached at time ``now`` (monotonic)."""


class Guard:
    """The watchdog, which takes no lock that a governor may hold."""

    def __init__(self) -> None:
        self._beat_at = time.monotonic()  # when the thread last ran
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._watched: dict[int, GuardedGovernor] = {}  # by id()
        self._failures: dict[int, int] = {}
        self._detaching: dict[int, threading.Thread] = {}

    def watch(self, governor: GuardedGovernor) -> None:
        """Start watching a governor."""
        with self._lock:
            if not self._watched:
                self._beat_at = time.monotonic()
            self._watched[id(governor)] = governor
        self.ensure_running()

    def silent_s(self) -> float:
        """Return the seconds since the thread last ran; 0 if it has nothing to watch."""
        return time.monotonic() - self._beat_at if self._watched else 0.0

    def ensure_running(self) -> None:
        """Start the thread unless it is alive. Governors call this at each tick."""
        with self._lock:
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._run, name="guard", daemon=True)
                self._thread.start()

    def unwatch(self, governor: GuardedGovernor) -> None:
        """Stop watching a governor. From then on, the governor itself must detach its probes."""
        with self._lock:
            for known in (self._watched, self._failures, self._detaching):
                known.pop(id(governor), None)

    def _run(self) -> None:
        while True:
            time.sleep(PERIOD_S)
            self._beat_at = time.monotonic()
            with self._lock:
                watched = list(self._watched.items())
            for key, governor in watched:
                try:
                    if governor.check(time.monotonic()):
                        self._start_detaching(key, governor)
                except BaseException as error:  # includes panics of the Rust core; continue with the others
                    _LOG.critical("probe guard failed", extra={"error": repr(error)})

    def _start_detaching(self, key: int, governor: GuardedGovernor) -> None:
        """Detach in a separate thread: the kernel may block it, and other governors must still be watched."""
        before = self._detaching.get(key)
        if before is not None and before.is_alive():
            return
        thread = threading.Thread(target=self._detach, args=(key, governor), name="detach", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # the thread limit is reached
            self._detach(key, governor)
        else:
            self._detaching[key] = thread

    def _detach(self, key: int, governor: GuardedGovernor) -> None:
        try:
            governor.attachment.disable()
        except BaseException as error:
            failures = self._failures[key] = self._failures.get(key, 0) + 1
            extra = {"failures": failures, "error": repr(error)}
            _LOG.critical("cannot detach probes", extra=extra)
            if failures >= _MAX_FAILURES:
                signal.raise_signal(signal.SIGABRT)
        else:
            self._failures.pop(key, None)


_GUARD: Final = Guard()
watch = _GUARD.watch
ensure_running = _GUARD.ensure_running
unwatch = _GUARD.unwatch
silent_s = _GUARD.silent_s
